"""The options of a server in groups, each of one thing: who may ask, connections, what is kept.

As in ``zse.options``, each once; ``zse.server_options`` puts the groups together.
"""

from __future__ import annotations

from zse.option import Checked, described
from zse.records import record
from zse.units import MIB

MAX_PORT = 65535
MAX_TIMEOUT_SECONDS = 86_400.0
MAX_BODY_MIB = 1024


@record
class AccessOptions(Checked):
    """Access."""

    public: bool = described(
        False,
        "Answer everybody who reaches this server, without keys: a gate in front checks who comes",
    )
    api_keys: str = described(
        "",
        "API keys, separated by commas; admin:KEY is an admin's",
        env="ZSE_API_KEYS ZSE_API_KEY",
        is_secret=True,
    )
    api_keys_file: str = described(
        "", "File that holds API keys, such as a mounted secret", unset="none"
    )
    open_metrics: bool = described(
        False,
        "Let everybody read /metrics and /load without a key; they say how busy the server is, and "
        "nothing of what is asked",
    )
    limits_storage: str = described(
        "", "Where replicas count the use of keys together: redis://HOST:PORT/DB", unset="nowhere"
    )


@record
class HTTPOptions(Checked):
    """Connections: timeouts, sizes, names, HTTPS."""

    read_timeout: float = described(
        30.0,
        "How long a client may take to send the head of a request, or pause within its body",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
    )
    write_timeout: float = described(
        30.0,
        "How long a client may read nothing of its answer before the answer is ended",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
    )
    keep_alive_timeout: float = described(
        75.0,
        "How long an idle connection is kept; should be longer than a load balancer keeps it",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
    )
    max_connections: int = described(
        0, "Connections at once", unset="as many as the limit of open files allows"
    )
    max_websockets: int = described(64, "WebSockets open at once")
    max_body_mib: int = described(
        32, "Longest body of a request", unit="MiB", least=1, most=MAX_BODY_MIB
    )
    allowed_hosts: tuple[str, ...] = described(
        (),
        "Host name by which requests may call this server besides localhost, * for any; on an "
        "address other than loopback any name is accepted unless one is given",
        key="allowed_host",
    )
    cors_origins: tuple[str, ...] = described(
        (),
        "Origin of web pages that may call this server (CORS), such as https://app.example.com",
        key="cors_origin",
    )
    trusted_proxies: tuple[str, ...] = described(
        (),
        "Address or network of a proxy whose X-Forwarded headers are believed",
        key="trusted_proxy",
    )
    root_path: str = described("", "Path under which a proxy serves this server, such as /llm")
    ssl_certfile: str = described(
        "", "Certificate file (PEM), to serve HTTPS; read again when it changes"
    )
    ssl_keyfile: str = described("", "Key file (PEM)", unset="the key is in --ssl-certfile")

    @property
    def max_body_bytes(self) -> int:
        return self.max_body_mib * MIB


@record
class AuditOptions(Checked):
    """The audit log."""

    audit: bool = described(True, "Keep a line for each request: who, what, when, how many tokens")
    audit_dir: str = described(
        "", "Folder of the audit log", unset="ZSE_HOME/audit, if that can be written"
    )
    audit_content: bool = described(
        False, "Keep the beginning of each body in the audit log, too, prompts included"
    )


@record
class TelemetryOptions(Checked):
    """Metrics and traces."""

    metrics_by_key: bool = described(
        False, "Label metrics of requests with the API key's name; every key adds time series"
    )
    metrics_names: str = described(
        "zse", "Names in /metrics: ours alone, or vLLM's as well", choices=("zse", "both")
    )
    otlp_endpoint: str = described(
        "",
        "Collector for traces (OTLP over HTTP), such as http://127.0.0.1:4318",
        unset="no traces",
        env="ZSE_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    trace_ratio: float = described(
        1.0, "Share of requests that are traced, unless their client decides", most=1.0
    )
    trace_steps: str = described(
        "",
        "File that gets a line for each step of the engine: what was computed, and how long host "
        "and device took",
        unset="none",
    )


@record
class FleetOptions(Checked):
    """Several models in one server."""

    models: tuple[str, ...] = described(
        (),
        "Models that requests may name: a folder of .zse files, or NAME=MODEL; each is loaded when "
        "it is asked for, and the least recently used one makes room",
    )
    pins: tuple[str, ...] = described(
        (), "Name of a model of --models that is always kept", key="pin"
    )
    max_resident: int = described(
        0, "Models of --models that are loaded at once", unset="as many as fit"
    )
    model_wait: float = described(
        60.0,
        "How long a request waits for its model to be loaded, and a model for the running answers "
        "of the one that it replaces",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
    )
    model_turn: float = described(
        1.0,
        "How long a model in use goes on taking requests while another one waits for its place",
        unit="seconds",
        most=MAX_TIMEOUT_SECONDS,
    )
    sleep_after: float = described(
        0.0,
        "Idle time after which all models give their memory back, until the next request",
        unit="seconds",
        unset="never",
    )

    @property
    def is_wanted(self) -> bool:
        """Whether models come and go by themselves."""
        return bool(self.models or self.sleep_after)


@record
class PeerOptions(Checked):
    """Weights from other replicas, and for them."""

    share_weights: bool = described(
        False, "Offer this server's .zse file to replicas that know the peer secret"
    )
    share_port: int = described(
        8001, "Port at which replicas fetch weights", unset="a free one", most=MAX_PORT
    )
    share_connections: int = described(
        8, "Replicas that fetch weights at once; others are told to try again", least=1, most=1024
    )
    share_gbit: float = described(
        0.0, "Rate limit for sending weights", unit="Gbit/s", unset="no limit"
    )
    peers: tuple[str, ...] = described(
        (),
        "A replica that shares its weights, http://HOST:PORT; a model at an address (s3://, hf://, "
        "https://) is fetched from replicas first, and from its address if they cannot give it",
        key="peer",
    )
    peers_from: str = described(
        "",
        "Where replicas are found: a DNS name, NAME or NAME:PORT, such as a headless service of "
        "Kubernetes; auto for all that share on this network; scout:HOST:PORT for all that a mesh "
        "node with --scout knows; host for this machine's GPUs alone",
        unset="none",
    )
    share_memory: str = described(
        "auto",
        "Whether replicas of one host copy weights out of each other's GPU memory, where that is "
        "possible",
        choices=("auto", "off"),
    )
    secret: str = described(
        "", "Secret that all replicas share, 16 bytes or more", key="peer_secret", is_secret=True
    )
    secret_file: str = described(
        "",
        "File that holds the peer secret, such as a mounted secret",
        key="peer_secret_file",
        unset="none",
    )

    @property
    def are_wanted(self) -> bool:
        """Whether replicas are asked, or are to ask."""
        return bool(self.peers or self.peers_from or self.share_weights)


@record
class MeshOptions(Checked):
    """One model on several machines."""

    mesh: str = described(
        "",
        "Nodes that compute the model: HOST:PORT of each, separated by commas; k8s:SERVICE:PORT "
        "for the pods of a headless service; auto for all on this network; scout:HOST:PORT for all "
        "that a node with --scout knows",
        unset="this machine alone",
    )
    mesh_secret: str = described(
        "", "Secret that all nodes of a mesh share, 16 characters or more", is_secret=True
    )
    mesh_nodes: int = described(1, "Nodes to wait for before layers are distributed", least=1)
    mesh_wait: float = described(
        30.0, "How long to wait for them", unit="seconds", most=MAX_TIMEOUT_SECONDS
    )
    mesh_split: str = described(
        "auto",
        "How layers are distributed: auto by the fastest plan, even in equal numbers, memory by "
        "the memory of each node",
        choices=("auto", "even", "memory"),
    )
    mesh_activations: str = described(
        "raw",
        "Coarsest format in which nodes may send activations to each other; each link uses the "
        "allowed one that is fastest there",
        choices=("raw", "bf16", "fp8", "int8", "int4"),
    )


@record
class ToolOptions(Checked):
    """Tools that the server runs."""

    tools: tuple[str, ...] = described(
        (),
        "Tool that requests may have the server run: calculator, datetime, parse_json, "
        "string_ops, http_get, or all",
    )
    hosts: tuple[str, ...] = described(
        (),
        "Host that http_get may reach, such as api.example.com or *.example.com",
        key="tool_host",
    )
    mcp: tuple[str, ...] = described(
        (),
        "MCP server whose tools requests may have the server call: NAME=COMMAND to start one, or "
        "NAME=https://HOST/PATH",
    )
    mcp_endpoint: bool = described(
        False, "Offer models, documents and status to MCP clients at POST /mcp"
    )
    timeout_seconds: float = described(
        10.0,
        "Time limit of a tool",
        unit="seconds",
        least=0.1,
        most=MAX_TIMEOUT_SECONDS,
        key="tool_timeout",
    )
    rounds: int = described(
        8,
        "Rounds of tool calls that an answer may make before it must end",
        least=1,
        most=64,
        key="tool_rounds",
    )
