"""The options of a server: who may ask and how, what is kept of it, which models, when it leaves.

As in ``zse.options``, each once.
"""

from __future__ import annotations

from zse.errors import UsageError
from zse.option import Checked, described
from zse.options import LoadOptions
from zse.records import record
from zse.units import GIB, MIB

TOOL_PARSERS = (
    *("auto", "none", "hermes", "qwen3_coder", "llama3", "mistral", "deepseek", "glm"),
    *("pythonic", "harmony", "kimi", "granite", "nemotron"),
)
REASONING_PARSERS = ("auto", "none", "think", "mistral", "seed", "granite")
LOG_FORMATS = ("auto", "text", "json")
POOLINGS = ("auto", "last", "mean")
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_PORT = 65535
MAX_TIMEOUT_SECONDS = 86_400.0
MAX_BODY_MIB = 1024
_INFINITE = float("inf")


@record
class AccessOptions(Checked):
    """Who may ask."""

    public: bool = described(
        False,
        "A gate in front asks who comes: without keys, all may ask that reach this server",
    )
    api_keys: str = described(
        "", "API keys with commas between them; admin:KEY is one of an admin", is_secret=True
    )
    api_keys_file: str = described("", "A mounted secret that holds API keys", unset="none")
    open_metrics: bool = described(
        False,
        "All may read /metrics and /load, which say how busy the server is and nothing of what is "
        "asked: gateways and scrapers show no key",
    )
    limits_storage: str = described(
        "", "Where replicas count together what a key uses: redis://HOST:PORT/DB", unset="nowhere"
    )


@record
class HTTPOptions(Checked):
    """How the server treats connections: whom it answers, for how long, how much."""

    read_timeout: float = described(
        30.0,
        "How long a client may take to send the head of a request, or stall in its body",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
    )
    write_timeout: float = described(
        30.0,
        "How long a client may take nothing of its answer before the answer is given up",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
    )
    keep_alive_timeout: float = described(
        75.0,
        "How long a connection is kept between requests; longer than load balancers keep theirs",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
    )
    max_connections: int = described(
        0, "Connections at once", unset="as many as the limit of open files has room for"
    )
    max_websockets: int = described(64, "WebSockets open at once")
    max_body_mib: int = described(
        32, "Longest body of a request", unit="MiB", least=1, most=MAX_BODY_MIB
    )
    allowed_hosts: tuple[str, ...] = described(
        (),
        "Another name that requests may call this server by, * for any; on an address other than "
        "loopback all are answered unless one is given",
        key="allowed_host",
    )
    cors_origins: tuple[str, ...] = described(
        (),
        "Origin of web pages that browsers may let read answers, such as https://app.example.com",
        key="cors_origin",
    )
    trusted_proxies: tuple[str, ...] = described(
        (),
        "Address or network of a proxy in front, whose X-Forwarded headers are believed",
        key="trusted_proxy",
    )
    root_path: str = described("", "Path that a proxy in front puts before ours, such as /llm")
    ssl_certfile: str = described(
        "", "File of certificates (PEM) to serve HTTPS with; read again when it changes"
    )
    ssl_keyfile: str = described("", "File of the key", unset="it stands in --ssl-certfile")

    @property
    def max_body_bytes(self) -> int:
        return self.max_body_mib * MIB


@record
class AuditOptions(Checked):
    """The log of who asked what."""

    audit: bool = described(True, "Keep a line of each request: who, what, when, how many tokens")
    audit_dir: str = described(
        "", "Folder of the audit log", unset="audit in ZSE_HOME, where that can be written"
    )
    audit_content: bool = described(
        False, "Keep the beginning of each body too, prompts and all, in the audit log"
    )


@record
class TelemetryOptions(Checked):
    """What operators see."""

    metrics_by_key: bool = described(
        False, "Tell metrics of requests by API key too; every key is a set of time series"
    )
    metrics_names: str = described(
        "zse", "Names in /metrics: ours, or vLLM's beside them", choices=("zse", "both")
    )
    otlp_endpoint: str = described(
        "",
        "Collector that traces are sent to (OTLP over HTTP), such as http://127.0.0.1:4318",
        unset="no traces",
        env="ZSE_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    trace_ratio: float = described(
        1.0, "Share of requests that are traced, where their clients do not say", most=1.0
    )
    trace_steps: str = described(
        "",
        "File that a line is added to for each step of the engine: what it computed, and what the "
        "host and the device took",
        unset="none",
    )


@record
class FleetOptions(Checked):
    """Many models in one server: which, how many at once, how long others wait for their turn."""

    models: tuple[str, ...] = described(
        (),
        "Models that requests may name: a folder of .zse files, or NAME=MODEL; brought when they "
        "are asked for, in place of the least recently used",
    )
    pins: tuple[str, ...] = described(
        (), "A model of --models that never leaves for another, by its name", key="pin"
    )
    max_resident: int = described(
        0, "Models of --models that are there at once", unset="as many as fit"
    )
    model_wait: float = described(
        60.0,
        "How long a request waits for its model, and a model for the answers of the one before it",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
    )
    model_turn: float = described(
        1.0,
        "How long a model that is in use goes on taking requests while others wait for its place",
        unit="seconds",
        most=MAX_TIMEOUT_SECONDS,
    )
    sleep_after: float = described(
        0.0,
        "How long nobody must have asked anything for all models to give their memory back until "
        "somebody does",
        unit="seconds",
        unset="never",
    )

    @property
    def is_wanted(self) -> bool:
        """Whether models come and go by themselves."""
        return bool(self.models or self.sleep_after)


@record
class PeerOptions(Checked):
    """Weights from replicas that are ready, and for replicas that start."""

    share_weights: bool = described(
        False, "Give this server's .zse file to replicas that know the peers' secret"
    )
    share_port: int = described(
        8001, "Port where replicas get it", unset="a free one", most=MAX_PORT
    )
    share_connections: int = described(
        8, "Replicas' connections at once; others are told to come again", least=1, most=1024
    )
    share_gbit: float = described(
        0.0, "Most that is sent to replicas", unit="Gbit/s", unset="as much as goes"
    )
    peers: tuple[str, ...] = described(
        (),
        "A replica that shares its weights, http://HOST:PORT; a model behind an address comes from "
        "replicas first, and from its address where they do not bring it",
        key="peer",
    )
    peers_from: str = described(
        "",
        "A name whose addresses are replicas, NAME or NAME:PORT, such as a headless service of "
        "Kubernetes",
        unset="none",
    )
    secret: str = described(
        "", "What all replicas know, 16 bytes or more", key="peer_secret", is_secret=True
    )
    secret_file: str = described(
        "", "A mounted secret that holds it", key="peer_secret_file", unset="none"
    )

    @property
    def are_wanted(self) -> bool:
        """Whether replicas are asked, or are to ask."""
        return bool(self.peers or self.peers_from or self.share_weights)


@record
class MeshOptions(Checked):
    """Several machines that compute one model together."""

    mesh: str = described(
        "",
        "Nodes that compute the model: HOST:PORT of each with commas between them, "
        "k8s:SERVICE:PORT for the pods of a headless service, auto for all on this network, or "
        "scout:HOST:PORT for all that a node with --scout knows",
        unset="this machine alone",
    )
    mesh_secret: str = described(
        "", "What all nodes of a mesh know, 16 characters or more", is_secret=True
    )
    mesh_nodes: int = described(1, "Nodes that are waited for before layers are dealt out", least=1)
    mesh_wait: float = described(
        30.0, "How long they are waited for", unit="seconds", most=MAX_TIMEOUT_SECONDS
    )
    mesh_split: str = described(
        "auto",
        "How layers are dealt out: auto is the best plan, even gives each node as many",
        choices=("auto", "even"),
    )
    mesh_activations: str = described(
        "raw",
        "What wires between nodes may lose at most; each gets the form in which rows arrive first",
        choices=("raw", "bf16", "fp8", "int8", "int4"),
    )


@record
class ToolOptions(Checked):
    """Tools that the server runs itself, where a request asks for them."""

    tools: tuple[str, ...] = described(
        (),
        "A tool that requests may let the server run: calculator, datetime, parse_json, "
        "string_ops, http_get, or all",
    )
    hosts: tuple[str, ...] = described(
        (),
        "A host that http_get may ask, such as api.example.com or *.example.com",
        key="tool_host",
    )
    mcp: tuple[str, ...] = described(
        (),
        "An MCP server whose tools requests may let the server call: NAME=COMMAND, which is "
        "started, or NAME=https://HOST/PATH",
    )
    mcp_endpoint: bool = described(
        False, "Offer models, documents and status to MCP clients, at POST /mcp"
    )
    timeout_seconds: float = described(
        10.0,
        "How long a tool may take",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
        key="tool_timeout",
    )
    rounds: int = described(
        8,
        "How often an answer may call tools and go on, before it must end",
        least=1,
        most=64,
        key="tool_rounds",
    )


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
