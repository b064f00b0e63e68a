"""Models by the names that people know them by: what they are, and how large.

``registry.toml`` holds the shapes; memory follows from them by the formulas of ``memory.py``, so
nothing here is a figure that somebody measured once.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zse.errors import NotFoundError
from zse.models.families import read_checkpoint
from zse.models.memory import ModelFacts, estimate_memory
from zse.models.well_known import WELL_KNOWN
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

Category = Literal["chat", "code", "reasoning", "embedding"]

_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)


@record
class KnownModel:
    """One model of the registry."""

    repository: str
    """``owner/name`` on the hub."""
    category: Category
    is_recommended: bool
    """What to try first: see the table."""
    source: str
    """Where its numbers were read."""
    recorded: date
    architecture: str
    num_parameters: int
    max_context: int
    """Tokens it was trained for."""
    facts: ModelFacts


def known_names() -> list[str]:
    """Return the repositories of the registry, without reading what they are."""
    return list(_table()["models"])


def known_models() -> Mapping[str, KnownModel]:
    """Return the models of the registry by their repositories."""
    return {name: _known(name) for name in known_names()}


def find_known(repository: str) -> KnownModel:
    """Return a model of the registry, without reading the others.

    Raises:
        NotFoundError: It is not in the registry; the hint names what is nearest.
    """
    if repository in known_names():
        return _known(repository)
    close = nearest_names(repository)
    meant = f"Did you mean {' or '.join(close)}? " if close else ""
    raise NotFoundError(
        f"the registry has no model {repository[:100]!r}",
        hint=f"{meant}See `zse models list`; any other model is looked at once it is on this "
        "machine, by its folder.",
    )


def select_models(
    *,
    category: str | None = None,
    is_recommended: bool = False,
    largest_bytes: float | None = None,
    on_gpu: bool = True,
) -> list[KnownModel]:
    """Return the models of the registry that are asked for.

    Args:
        category: Only these.
        is_recommended: Only what to try first.
        largest_bytes: Only what fits in so much memory at INT4 with a context of 4,096 tokens.
        on_gpu: Whether that is memory of a GPU.
    """
    return [
        model
        for model in known_models().values()
        if (category is None or model.category == category)
        and (model.is_recommended or not is_recommended)
        and (largest_bytes is None or _int4_bytes(model, on_gpu=on_gpu) <= largest_bytes)
    ]


def search_models(words: str) -> list[KnownModel]:
    """Return the models whose name or category has every word, whatever its case."""
    wanted = words.lower().split()
    return [
        model
        for model in known_models().values()
        if all(word in f"{model.repository} {model.category}".lower() for word in wanted)
    ]


def _int4_bytes(model: KnownModel, *, on_gpu: bool) -> int:
    return estimate_memory(model.facts, "int4", on_gpu=on_gpu).total_bytes


def nearest_names(asked: str) -> list[str]:
    """Return up to three repositories like what was asked for, with its owner or without.

    What a name begins with is nearest: qwen2.5-7b is Qwen/Qwen2.5-7B-Instruct.
    """
    words = asked[:200].lower().replace(":", "-")  # as other programs write sizes
    by_words = {name.lower(): name for name in known_names()}
    if "/" not in words:
        by_words = {long.rpartition("/")[2]: name for long, name in by_words.items()}
    begin = [long for long in sorted(by_words, key=len) if words and long.startswith(words)]
    return [by_words[long] for long in (begin or get_close_matches(words, by_words))[:3]]


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def _known(repository: str) -> KnownModel:
    table = _table()
    row = table["models"][repository]
    config = _config_of(row["shape"], table)
    facts = ModelFacts(spec=read_checkpoint(config))
    return KnownModel(
        repository=repository,
        category=row["category"],
        is_recommended=row.get("recommended", False),
        source=table["sources"][row["source"]],
        recorded=row["recorded"],
        architecture=config["architectures"][0],
        num_parameters=facts.num_parameters,
        max_context=facts.spec.max_position,
        facts=facts,
    )


def _config_of(shape: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a ``config.json`` that a shape stands for."""
    if shape in WELL_KNOWN:
        return dict(WELL_KNOWN[shape])
    row = dict(table["shapes"][shape])
    family, sizes = row.pop("family"), row.pop("sizes")
    named = dict(zip(_SIZES, sizes, strict=True))
    common = dict(table["families"][family])
    empty = dict.fromkeys(common.pop("null", ()))
    return {"model_type": family, **common, **empty, **named, **row}
