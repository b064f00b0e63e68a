"""The options of one start of a server: what it serves, how, and when it leaves.

As in ``zse.options``, each once. Those of one thing stand in ``zse.server_groups``, whose names can
be had from here.
"""

from __future__ import annotations

from zse.errors import UsageError
from zse.option import Checked, described
from zse.options import LoadOptions
from zse.records import record
from zse.server_groups import (
    MAX_PORT,
    MAX_TIMEOUT_SECONDS,
    AccessOptions,
    AuditOptions,
    FleetOptions,
    HTTPOptions,
    MeshOptions,
    PeerOptions,
    TelemetryOptions,
    ToolOptions,
)
from zse.units import GIB

__all__ = [
    "LOG_FORMATS",
    "LOG_LEVELS",
    "MAX_PORT",
    "MAX_TIMEOUT_SECONDS",
    "POOLINGS",
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "AccessOptions",
    "AuditOptions",
    "FleetOptions",
    "HTTPOptions",
    "MeshOptions",
    "PeerOptions",
    "ServeOptions",
    "TelemetryOptions",
    "ToolOptions",
]

TOOL_PARSERS = (
    *("auto", "none", "hermes", "qwen3_coder", "llama3", "mistral", "deepseek", "glm"),
    *("pythonic", "harmony", "kimi", "granite", "nemotron"),
)
REASONING_PARSERS = ("auto", "none", "think", "mistral", "seed", "granite")
LOG_FORMATS = ("auto", "text", "json")
POOLINGS = ("auto", "last", "mean")
LOG_LEVELS = ("debug", "info", "warning", "error")
_INFINITE = float("inf")


@record
class ServeOptions(Checked):
    """One start of the server."""

    model: str = described("tiny", "A .zse file, a checkpoint folder, a hub id or a built-in name")
    host: str = described("127.0.0.1", "Address to bind; images set 0.0.0.0")
    port: int = described(
        8000, "Port to bind", unset="a free one", most=MAX_PORT, env="PORT ZSE_PORT"
    )
    http: HTTPOptions = HTTPOptions()
    served_model_name: str = described("", "Name in /v1/models", unset="the model's own")
    model_alias: str = described(
        "",
        "Other names that requests may give the model, with commas between them; "
        "* stands for any text, as in claude-*",
        unset="none but default",
    )
    tool_parser: str = described(
        "auto", "How the model writes calls of tools; auto asks its template", choices=TOOL_PARSERS
    )
    reasoning_parser: str = described(
        "auto",
        "How the model marks its reasoning; auto asks its template",
        choices=REASONING_PARSERS,
    )
    model_places: str = described(
        "",
        "Where other models may be loaded from over the API, with commas between them: folders, "
        "s3://BUCKET/PREFIX/, hf://OWNER/, single models",
        unset="nowhere",
    )
    fleet: FleetOptions = FleetOptions()
    server_tools: ToolOptions = ToolOptions()
    peering: PeerOptions = PeerOptions()
    mesh: MeshOptions = MeshOptions()
    loras: tuple[str, ...] = described(
        (), "A LoRA adapter that requests may name, NAME=FOLDER in PEFT's form", key="lora"
    )
    lora_places: str = described(
        "",
        "Folders that adapters may be loaded from over the API, with commas between them",
        unset="nowhere",
    )
    models_gib: float = described(
        0.0, "Memory for all models on a CPU together", unit="GiB", unset="what is available"
    )
    load: LoadOptions = LoadOptions()
    restart_ranks: bool = described(
        False,
        "When one of several devices that compute a model fails, load the model again on all of "
        "them; else the server ends",
    )
    ui: bool = described(True, "Serve the dashboard and the playground")
    pooling: str = described(
        "auto",
        "Which hidden states make the vector of a text, the last token's or the mean of all; auto "
        "is what the model's files say, else last",
        choices=POOLINGS,
    )
    max_queue: int = described(256, "Answers that may wait before new requests get 429")
    stored_responses: int = described(
        1000,
        "Answers of /v1/responses that are kept in memory, 64 Mi characters in all",
        unset="none",
    )
    resumable_streams: int = described(
        64, "Streams that can be resumed at once; each keeps up to 2 MiB of events"
    )
    resume_seconds: float = described(
        60.0, "How long such a stream goes on, and is kept, while nobody reads it", unit="seconds"
    )
    max_queue_tokens: int = described(
        4194304, "Prompt tokens that may run and wait before new requests get 429", unit="tokens"
    )
    max_unread: int = described(
        32768,
        "Most of an answer that may lie unread by its client before the answer is ended",
        unit="tokens",
        least=256,
    )
    max_request_seconds: float = described(
        0.0,
        "Longest time of a request; the header X-Request-Timeout may ask for less",
        unit="seconds",
        unset="no end",
    )
    leave_seconds: float = described(
        0.0,
        "How long SIGTERM, with readiness off, goes on answering new requests",
        unit="seconds",
    )
    handover: str = described(
        "", "Unix socket at which a server hands its port to the next one that is started with it"
    )
    hold_seconds: float = described(
        0.0,
        "How long a request that comes while the model is loaded waits for it, before 503",
        unit="seconds",
        most=MAX_TIMEOUT_SECONDS,
    )
    drain_seconds: float = described(
        30.0, "How long SIGTERM waits for work in flight", unit="seconds", most=_INFINITE
    )
    access: AccessOptions = AccessOptions()
    audit: AuditOptions = AuditOptions()
    telemetry: TelemetryOptions = TelemetryOptions()
    log_level: str = described("info", "What is logged", choices=LOG_LEVELS, any_case=True)
    log_format: str = described(
        "auto", "How it is logged; auto is text for a person at a terminal", choices=LOG_FORMATS
    )
    loading_ping_status: int = 204
    """What /ping answers until the model is there: 204 or 503."""
    start_time_ns: int = described(
        0,
        "CLOCK_REALTIME when a launcher started the process",
        unit="nanoseconds",
        unset="the kernel is asked",
        is_internal=True,
    )
    container_start_time_ns: int = described(
        0,
        "CLOCK_REALTIME when the platform started the container",
        unit="nanoseconds",
        unset="the age of the container's first process, where that started this one",
        is_internal=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks = self.load.ranks
        if ranks.num_devices == 1:
            return
        alone = {
            "--models": self.fleet.models,
            "--sleep-after": self.fleet.sleep_after,
            "--mesh": self.mesh.mesh,
            "--lora": self.loras,
            "--lora-places": self.lora_places,
        }
        for flag, is_given in alone.items():
            if is_given:
                is_staged = ranks.tensor_parallel == 1
                beside = "--pipeline-parallel" if is_staged else "--tensor-parallel"
                count = ranks.pipeline_parallel if is_staged else ranks.tensor_parallel
                raise UsageError(
                    f"{flag} is given beside {beside} {count}: several devices compute one model, "
                    "as it is, for as long as the server runs",
                    hint=f"Leave out {flag}, or {beside}.",
                )

    @property
    def models_bytes(self) -> int:
        """Memory for all models on a CPU together; 0 means what is available."""
        return int(self.models_gib * GIB)

    @property
    def places(self) -> tuple[str, ...]:
        """Where other models may be loaded from."""
        return tuple(place for each in self.model_places.split(",") if (place := each.strip()))

    @property
    def adapter_places(self) -> tuple[str, ...]:
        """Folders that adapters may be loaded from over the API."""
        return tuple(place for each in self.lora_places.split(",") if (place := each.strip()))

    @property
    def aliases(self) -> tuple[str, ...]:
        """Patterns of the other names that requests may give the model."""
        return tuple(name for each in self.model_alias.split(",") if (name := each.strip()))
