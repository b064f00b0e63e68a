"""How a server is started, from flags and the environment."""

from __future__ import annotations

from zse.errors import UsageError
from zse.records import record

MAX_PORT = 65535
LOG_FORMATS = ("auto", "text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


@record
class ServeOptions:
    """One start of the server.

    Raises:
        UsageError: A value is out of range.
    """

    model: str
    """A .zse file, a checkpoint folder, a hub id or a built-in name."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free port, which is printed."""
    device: str = "auto"
    served_model_name: str = ""
    """Name in /v1/models; empty takes the model's own."""
    max_context: int = 0
    """Longest sequence in tokens; 0 means what the model says."""
    threads: int = 0
    """CPU threads; 0 means one a core, within the container's quota."""
    kv_gib: float = 0.0
    """Memory for the KV cache in GiB; 0 means chosen from what is free."""
    vram_gib: float = 0.0
    """GPU memory for everything, in GiB; 0 means all that is free."""
    kv_dtype: str = "auto"
    """auto, fp32, bf16 or int8."""
    exact_activations: bool = False
    """Never round activations to 8 bits on a GPU."""
    kernels: str = ""
    """Kernel pack for the GPU; empty looks in the usual places."""
    max_running: int = 64
    """Answers that run at once; each needs room in the KV cache and takes its share of a step."""
    max_queue: int = 256
    """Answers that may wait before new requests get 429."""
    drain_seconds: float = 30.0
    """How long SIGTERM waits for work in flight."""
    log_level: str = "info"
    """One of ``LOG_LEVELS``, in any case."""
    log_format: str = "auto"
    """One of ``LOG_FORMATS``; auto is text for a person at a terminal."""
    loading_ping_status: int = 204
    """What /ping answers until the model is there: 204 or 503."""
    start_time_ns: int = 0
    """CLOCK_REALTIME when a launcher started the process; 0 asks the kernel."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MAX_PORT:
            raise UsageError(f"port {self.port} is not between 0 and {MAX_PORT}")
        for name in ("max_context", "threads", "kv_gib", "vram_gib", "max_queue", "drain_seconds"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is {getattr(self, name)}, expected 0 or more")
        if self.log_level.lower() not in LOG_LEVELS:
            known = ", ".join(LOG_LEVELS)
            raise UsageError(f"log level {self.log_level!r} is not one of {known}")
        if self.log_format not in LOG_FORMATS:
            known = ", ".join(LOG_FORMATS)
            raise UsageError(f"log format {self.log_format!r} is not one of {known}")
        if self.max_running < 1:
            raise UsageError(f"max_running is {self.max_running}, expected 1 or more")
