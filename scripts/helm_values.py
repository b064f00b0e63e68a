"""The values of the Helm chart: one table, of which values.yaml and its schema are made.

Defaults that `zse deploy kubernetes` has, too, are read from its records.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from zse.deploy.order import Order
from zse.option import own_options

RESERVED = (
    "PORT",
    "ZSE_API_KEYS",
    "ZSE_API_KEYS_FILE",
    "ZSE_CACHE_DIR",
    "ZSE_DRAIN_SECONDS",
    "ZSE_HOST",
    "ZSE_MODEL",
    "ZSE_PORT",
    "ZSE_PUBLIC",
)
"""Variables that have values of their own."""
_NUMBER = {"type": "integer", "minimum": 0}
_COUNT = {"type": "integer", "minimum": 1}
_TEXT = {"type": "string"}
_SWITCH = {"type": "boolean"}
_PAIRS = {"type": "object", "additionalProperties": _TEXT}
_QUANTITY = {"type": "string", "pattern": "^$|^[0-9]+(\\.[0-9]+)?(m|[kMGTPE]i?)?$"}
_VARIABLE = {
    "type": "string",
    "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
    "not": {"enum": list(RESERVED)},
}
_SECRETS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"variable": _VARIABLE, "secret": _TEXT, "key": _TEXT},
        "required": ["variable", "secret"],
        "additionalProperties": False,
    },
}


class Value(NamedTuple):
    """One value: its path, what it is without being set, its schema, what it means."""

    path: str
    default: Any
    schema: dict[str, Any]
    meaning: str


def _choice(*words: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


def _pairs_without(pattern: str) -> dict[str, Any]:
    """Pairs without the names that the chart writes."""
    return {**_PAIRS, "propertyNames": {"not": {"pattern": pattern}}}


def _of_order(name: str) -> Any:
    return own_options(Order)[name].default


VALUES = (
    Value("image", "", _TEXT, "what `zse build-image` made, REGISTRY/NAME:TAG; must be given"),
    Value(
        "pullPolicy",
        "IfNotPresent",
        _choice("IfNotPresent", "Always", "Never"),
        "when a node fetches the image",
    ),
    Value("pullSecret", "", _TEXT, "secret with the registry's credentials"),
    Value(
        "model",
        "",
        _TEXT,
        "hf://, s3:// or https://, or /models/NAME.zse of volume; else the image's",
    ),
    Value("volume", "", _TEXT, "claim that is mounted at /models for reading"),
    Value("gpu.enabled", True, _SWITCH, "whether it is for a GPU"),
    Value(
        "gpu.product",
        "",
        _TEXT,
        "as nvidia.com/gpu.product labels nodes; else any with enough memory",
    ),
    Value("gpu.memoryMiB", 0, _NUMBER, "what the model needs of a GPU: `zse info MODEL`"),
    Value("resources.cpu", "", _QUANTITY, "processors asked for; 2 with a GPU, else 4"),
    Value("resources.memory", "", _QUANTITY, "of a replica; 2Gi to 8Gi with a GPU, else 5120Mi"),
    Value(
        "resources.disk",
        "2Gi",
        _QUANTITY,
        "what a replica may fill, its copy of a model included; empty for no limit",
    ),
    Value(
        "keys.secret",
        "",
        _TEXT,
        "secret with API keys; without one, whoever reaches the service may ask",
    ),
    Value("keys.key", "ZSE_API_KEYS", _TEXT, "its entry"),
    Value("public", False, _SWITCH, "let anyone in from outside without a key"),
    Value(
        "env",
        {},
        {**_PAIRS, "propertyNames": _VARIABLE},
        'more variables of the server: ZSE_MAX_QUEUE: "64"',
    ),
    Value(
        "secrets",
        [],
        _SECRETS,
        "variables from secrets: - {variable: HF_TOKEN, secret: hub, key: HF_TOKEN}",
    ),
    Value("port", _of_order("port"), {**_COUNT, "maximum": 65535}, "of the server in its pod"),
    Value("replicas", 1, _NUMBER, "where nothing scales them"),
    Value(
        "autoscaling.enabled", False, _SWITCH, "sleep and wake with KEDA and its HTTP add-on 0.14"
    ),
    Value("autoscaling.min", _of_order("min_replicas"), _NUMBER, "replicas that never sleep"),
    Value("autoscaling.max", _of_order("max_replicas"), _COUNT, "replicas at most"),
    Value(
        "autoscaling.concurrency",
        _of_order("concurrency"),
        _COUNT,
        "requests a replica works on before another is started",
    ),
    Value("autoscaling.idleSeconds", _of_order("idle_seconds"), _NUMBER, "until a replica sleeps"),
    Value(
        "probes.startupSeconds", _of_order("startup_seconds"), _COUNT, "until a start has failed"
    ),
    Value("drain.seconds", _of_order("drain_seconds"), _NUMBER, "for work in flight at a stop"),
    Value("drain.pauseSeconds", 5, _NUMBER, "between leaving the service and SIGTERM"),
    Value(
        "serviceType",
        "ClusterIP",
        _choice("ClusterIP", "LoadBalancer", "NodePort"),
        "of the Service",
    ),
    Value("host", "", _TEXT, "host name of requests from outside, for ingress and gateway too"),
    Value("ingress.className", "", _TEXT, "makes an Ingress of this class for host"),
    Value("ingress.tlsSecret", "", _TEXT, "its certificate"),
    Value("gateway.name", "", _TEXT, "makes an HTTPRoute on this Gateway"),
    Value("gateway.namespace", "", _TEXT, "where that is"),
    Value("serviceAccount.name", "", _TEXT, "that exists, for s3:// without keys"),
    Value(
        "serviceAccount.annotations",
        {},
        _PAIRS,
        "makes one with these: eks.amazonaws.com/role-arn: ARN",
    ),
    Value("runtimeClass", "", _TEXT, "nvidia, where GPUs need one"),
    Value("podLabels", {}, _pairs_without("^app\\.kubernetes\\.io/name$"), "more labels of pods"),
    Value("podAnnotations", {}, _pairs_without("^prometheus\\.io/"), "more annotations of pods"),
    Value(
        "scrape",
        "annotations",
        _choice("annotations", "pod-monitor", "none"),
        "how Prometheus finds /metrics",
    ),
    Value("maxUnavailable", 1, _NUMBER, "replicas that a drained node may take away at once"),
)


def defaults() -> dict[str, Any]:
    """Return the tree of defaults."""
    tree: dict[str, Any] = {}
    for value in VALUES:
        group, _, name = value.path.rpartition(".")
        (tree.setdefault(group, {}) if group else tree)[name] = value.default
    return tree


def as_yaml() -> str:
    """Return values.yaml: every value with its meaning above it."""
    lines, group = [], ""
    for value in VALUES:
        own, _, name = value.path.rpartition(".")
        if own and own != group:
            lines.append(f"{own}:")
        group = own
        indent = "  " if own else ""
        lines += [f"{indent}# {value.meaning}", f"{indent}{name}: {json.dumps(value.default)}"]
    return "\n".join(lines) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema that Helm checks values against; unknown names are refused."""
    groups: dict[str, Any] = {}
    for value in VALUES:
        own, _, name = value.path.rpartition(".")
        row = {**value.schema, "description": value.meaning}
        if own:
            groups.setdefault(own, _object({}))["properties"][name] = row
        else:
            groups[name] = row
    # Helm adds `global` to what a chart that others depend on is given.
    found = _object({**groups, "global": {"type": "object"}})
    return {"$schema": "http://json-schema.org/draft-07/schema#", **found}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
