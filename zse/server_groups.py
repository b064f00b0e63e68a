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
        "Kubernetes; auto for all that share on this network, or scout:HOST:PORT for all that a "
        "node of a mesh with --scout knows",
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
        "How layers are dealt out: auto is the best plan, even gives each node as many, memory as "
        "many as its part of all memory",
        choices=("auto", "even", "memory"),
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
