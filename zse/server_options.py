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
        "Other names by which requests may call the model, separated by commas; "
        "* stands for any text, as in claude-*",
        unset="no other name than default",
    )
    tool_parser: str = described(
        "auto",
        "Format of the model's tool calls; auto looks at its chat template",
        choices=TOOL_PARSERS,
    )
    reasoning_parser: str = described(
        "auto",
        "Format of the model's reasoning; auto looks at its chat template",
        choices=REASONING_PARSERS,
    )
    model_places: str = described(
        "",
        "Places from which the API may load other models, separated by commas: folders, "
        "s3://BUCKET/PREFIX/, hf://OWNER/, single models",
        unset="nowhere",
    )
    fleet: FleetOptions = FleetOptions()
    server_tools: ToolOptions = ToolOptions()
    peering: PeerOptions = PeerOptions()
    mesh: MeshOptions = MeshOptions()
    loras: tuple[str, ...] = described(
        (), "LoRA adapter that requests may name: NAME=FOLDER, in PEFT's format", key="lora"
    )
    lora_places: str = described(
        "",
        "Folders from which the API may load adapters, separated by commas",
        unset="nowhere",
    )
    models_gib: float = described(
        0.0, "Memory for all models together, on a CPU", unit="GiB", unset="what is available"
    )
    load: LoadOptions = LoadOptions()
    restart_ranks: bool = described(
        False,
        "If one of several devices fails, load the model again on all of them instead of ending",
    )
    ui: bool = described(True, "Serve the dashboard and the playground")
    pooling: str = described(
        "auto",
        "What an embedding is made of: the hidden state of the last token or the mean of all; auto "
        "is what the model's files say, else last",
        choices=POOLINGS,
    )
    max_queue: int = described(256, "Answers that may wait; requests beyond that get 429")
    stored_responses: int = described(
        1000,
        "Answers of /v1/responses that are kept in memory, at most 64 Mi characters in all",
        unset="none",
    )
    resumable_streams: int = described(
        64, "Resumable streams at once; each keeps up to 2 MiB of events"
    )
    resume_seconds: float = described(
        60.0, "How long a resumable stream is kept while nobody reads it", unit="seconds"
    )
    max_queue_tokens: int = described(
        4194304, "Prompt tokens that may run and wait; requests beyond that get 429", unit="tokens"
    )
    max_unread: int = described(
        32768,
        "How much of an answer a slow client may leave unread before the answer is ended",
        unit="tokens",
        least=256,
    )
    max_request_seconds: float = described(
        0.0,
        "Time limit of a request; the header X-Request-Timeout may ask for less",
        unit="seconds",
        unset="no limit",
    )
    leave_seconds: float = described(
        0.0,
        "How long new requests are still answered after SIGTERM, while readiness is off",
        unit="seconds",
    )
    handover: str = described(
        "", "Unix socket by which a running server hands its port to its successor"
    )
    hold_seconds: float = described(
        0.0,
        "How long a request waits while the model is still loading, before it gets 503",
        unit="seconds",
        most=MAX_TIMEOUT_SECONDS,
    )
    drain_seconds: float = described(
        30.0, "How long running requests may go on after SIGTERM", unit="seconds", most=_INFINITE
    )
    access: AccessOptions = AccessOptions()
    audit: AuditOptions = AuditOptions()
    telemetry: TelemetryOptions = TelemetryOptions()
    log_level: str = described(
        "info", "Least severity that is logged", choices=LOG_LEVELS, any_case=True
    )
    log_format: str = described(
        "auto",
        "Format of the log; auto is text on a terminal and JSON elsewhere",
        choices=LOG_FORMATS,
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
                hint = f"Leave out {flag}, or {beside}."
                if flag == "--mesh":
                    hint = "Nodes share their layers: zse mesh start --tensor-parallel N."
                raise UsageError(
                    f"{flag} is given beside {beside} {count}: several devices compute one model, "
                    "as it is, for as long as the server runs",
                    hint=hint,
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
