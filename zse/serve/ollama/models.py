"""GET /api/tags, /api/ps and /api/version, POST /api/show: the models in Ollama's words."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from zse.serve.http.json_body import with_body
from zse.serve.http.requests import ignored_header, json_response, read_body, state_of
from zse.serve.ollama.protocol import OllamaShowRequest, read_ollama
from zse.serve.ollama.writer import timestamp
from zse.serve.openai.models import model_named, models_of
from zse.serve.state import LoadedModel

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from zse.serve.fleet.listing import AbsentModel

SPOKEN_VERSION = "0.12.11"
"""Of Ollama: whose API this is. Clients ask for it and refuse to talk to older ones."""
_TAG = ":latest"
_NO_DIGEST = "0" * 64
_KEPT_SECONDS = 10 * 365 * 86_400
"""What is loaded stays: clients show how long."""


def plain_name(request: Request, name: str) -> str:
    """Return the name that is served: clients add a tag to names that have none."""
    known = {one.name for one in models_of(state_of(request))}
    return name if name in known else name.removesuffix(_TAG)


async def ollama_tags(request: Request) -> Response:
    models = models_of(state_of(request))
    return json_response({"models": [_entry(model) for model in models]})


async def ollama_ps(request: Request) -> Response:
    there = [one for one in models_of(state_of(request)) if isinstance(one, LoadedModel)]
    until = timestamp(time.time() + _KEPT_SECONDS)
    return json_response({"models": [{**_entry(one), **_place(one, until)} for one in there]})


async def ollama_version(request: Request) -> Response:  # noqa: ARG001
    return json_response({"version": SPOKEN_VERSION})


async def ollama_show(request: Request) -> Response:
    """Describe a model, and leave it where it is: clients look at all that are listed."""
    mapping = await read_body(request)
    if "name" in mapping:  # what the field was called before
        mapping.setdefault("model", mapping.pop("name"))
    body, ignored = await with_body(request, read_ollama, mapping, OllamaShowRequest)
    model = model_named(state_of(request), plain_name(request, body.model))
    described = _description(model) if isinstance(model, LoadedModel) else _UNKNOWN
    shown = {"details": _details(model), "modified_at": timestamp(model.created), **described}
    return json_response(shown, ignored_header(ignored))


_UNKNOWN = {
    "modelfile": "",
    "parameters": "",
    "template": "",
    "model_info": {},
    "capabilities": ["completion"],
}
"""What is said of a model that is not loaded."""


def _description(model: LoadedModel) -> dict[str, Any]:
    defaults = (f"{name} {value}" for name, value in model.sampling_defaults.items())
    return {
        "modelfile": "",
        "parameters": "\n".join(defaults),
        "template": "" if model.template is None else model.template.source,
        "model_info": _info(model),
        "capabilities": _capabilities(model),
    }


def _entry(model: LoadedModel | AbsentModel) -> dict[str, Any]:
    details = model.details if isinstance(model, LoadedModel) else {}
    fingerprint = model.fingerprint if isinstance(model, LoadedModel) else ""
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": timestamp(model.created),
        "size": details.get("file_bytes", 0),
        "digest": fingerprint.removeprefix("zse-").ljust(64, "0") or _NO_DIGEST,
        "details": _details(model),
    }


def _place(model: LoadedModel, until: str) -> dict[str, Any]:
    is_on_gpu = not str(model.details.get("device", "cpu")).startswith("cpu")
    size = model.details.get("file_bytes", 0)
    return {
        "expires_at": until,
        "size_vram": size if is_on_gpu else 0,
        "context_length": model.max_context,
    }


def _details(model: LoadedModel | AbsentModel) -> dict[str, Any]:
    facts = model.details if isinstance(model, LoadedModel) else {}
    family = str(facts.get("architecture", ""))
    count = _num_parameters(model)
    return {
        "parent_model": model.parent,
        "format": "zse",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _short(count) if count else "",
        "quantization_level": str(facts.get("scheme", "")).upper(),
    }


def _info(model: LoadedModel) -> dict[str, Any]:
    family = str(model.details.get("architecture", "model"))
    return {
        "general.architecture": family,
        "general.basename": model.name,
        "general.parameter_count": _num_parameters(model),
        f"{family}.context_length": model.max_context,
        f"{family}.embedding_length": model.vector_size,
    }


def _capabilities(model: LoadedModel) -> list[str]:
    if model.task != "text":
        return ["embedding"] if model.task == "vectors" else []
    source = "" if model.template is None else model.template.source
    found = {
        "completion": True,
        "tools": "tools" in source,
        "thinking": bool(model.dialect.thinking.switch or model.dialect.thinking.has_effort),
        "embedding": True,
    }
    return [name for name, is_there in found.items() if is_there]


def _num_parameters(model: LoadedModel | AbsentModel) -> int:
    spec = model.spec if isinstance(model, LoadedModel) else None
    return 0 if spec is None else sum(math.prod(weight.shape) for weight in spec.weights())


def _short(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
