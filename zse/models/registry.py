"""Models by the names that people know them by: what they are, and how large.

``registry.toml`` holds the shapes; memory follows from them by the formulas of ``memory.py``, so
nothing here is a figure that somebody measured once.
"""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse.models.families import read_checkpoint
from zse.models.memory import ModelFacts
from zse.models.well_known import WELL_KNOWN
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    category: str
    """chat, code or reasoning."""
    architecture: str
    num_parameters: int
    max_context: int
    """Tokens it was trained for."""
    facts: ModelFacts


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Return the models of the registry by their repositories."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: _known(name, row, table) for name, row in table["models"].items()}


def search_models(words: str) -> list[KnownModel]:
    """Return the models whose name or category has every word, whatever its case."""
    wanted = words.lower().split()
    return [
        model
        for model in known_models().values()
        if all(word in f"{model.repository} {model.category}".lower() for word in wanted)
    ]


def _known(repository: str, row: Mapping[str, str], table: Mapping[str, Any]) -> KnownModel:
    config = _config_of(row["shape"], table)
    spec = read_checkpoint(config)
    return KnownModel(
        repository=repository,
        category=row["category"],
        architecture=config["architectures"][0],
        num_parameters=sum(math.prod(weight.shape) for weight in spec.weights()),
        max_context=spec.max_position,
        facts=ModelFacts(spec=spec),
    )


def _config_of(shape: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a ``config.json`` that a shape stands for."""
    if shape in WELL_KNOWN:
        return dict(WELL_KNOWN[shape])
    row = dict(table["shapes"][shape])
    family, sizes = row.pop("family"), row.pop("sizes")
    named = dict(zip(_SIZES, sizes, strict=True))
    return {"model_type": family, **table["families"][family], **named, **row}
