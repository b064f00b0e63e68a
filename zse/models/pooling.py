"""How states become the vector of a text, as sentence-transformers keeps it beside a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zse.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.spec import ModelSpec, Pooling

POOLING_SECTION = "1_Pooling/config.json"
MODULES_FILE = "modules.json"
"""What stands between a text and its vector, step by step."""
_MODE = "pooling_mode"
_PREFIX = f"{_MODE}_"
_MODES: Mapping[str, Pooling] = {
    "cls_token": "first",
    "mean_tokens": "mean",
    "lasttoken": "last",
    "cls": "first",
    "mean": "mean",
}
_KNOWN_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})
_MAX_SHOWN = 100
_HINT = "Choose a model whose vectors are the mean of its states, or one of them."


def check_vectors(spec: ModelSpec, pooling: bytes | None, modules: bytes | None) -> None:
    """Refuse a checkpoint whose vectors nothing here makes.

    Args:
        spec: The model.
        pooling: ``1_Pooling/config.json``, where there is one.
        modules: ``modules.json``, likewise.

    Raises:
        UnsupportedModelError: It pools in another way, or its vectors go through further layers.
    """
    if pooling is not None:
        told = pooling_told(pooling)
        if told == "first" and not spec.is_encoder:
            raise UnsupportedModelError(
                f"{POOLING_SECTION} takes the first token, which sees no other in a "
                f"{spec.family} model",
                hint=_HINT,
            )
    kinds = _kinds_of(modules) if modules is not None else []
    others = [kind for kind in kinds if kind not in _KNOWN_MODULES]
    if others and "Pooling" in kinds:
        raise UnsupportedModelError(
            f"{MODULES_FILE} lists {', '.join(others)[:_MAX_SHOWN]} behind the model: its vectors "
            "would be others without",
            hint=_HINT,
        )


def pooling_told(data: bytes) -> Pooling | None:
    """Return what a ``1_Pooling/config.json`` says; None where it says nothing.

    Raises:
        UnsupportedModelError: It cannot be read, or says what nothing here computes.
    """
    config = _parsed(data, POOLING_SECTION)
    if not isinstance(config, dict):
        raise UnsupportedModelError(f"{POOLING_SECTION} is no JSON object")
    modes = [name.removeprefix(_PREFIX) for name, value in config.items() if _is_on(name, value)]
    if (told := config.get(_MODE)) is not None:
        modes += told if isinstance(told, list) else [told]
    if not modes:
        return None
    if len(modes) > 1 or str(modes[0]) not in _MODES:
        found = ", ".join(map(str, modes))[:_MAX_SHOWN]
        raise UnsupportedModelError(
            f"{POOLING_SECTION} pools by {found}; expected one of cls_token, mean_tokens and "
            "lasttoken",
            hint=_HINT,
        )
    return _MODES[str(modes[0])]


def _is_on(name: str, value: object) -> bool:
    return name.startswith(_PREFIX) and value is True


def _kinds_of(modules: bytes) -> list[str]:
    """Return the kinds of what a ``modules.json`` lists, without the packages that they are in."""
    listed = _parsed(modules, MODULES_FILE)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise UnsupportedModelError(f"{MODULES_FILE} is no JSON list of objects")
    return [str(each.get("type", "")).rpartition(".")[2] for each in listed]


def _parsed(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnsupportedModelError(f"{name} is not JSON: {error}") from error
