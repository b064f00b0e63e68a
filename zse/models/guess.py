"""Heads that guess the token after the next one: what checkpoints call their parts.

Checkpoints of many makers have one or two of them (multi-token prediction), which other tools
often leave out. What a file keeps of them is whole, or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.format.names import SPARE_PREFIX
from zse.models.parts import Piece, linear
from zse.models.spec import GuessSpec
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import LayerSpec
    from zse.models.parts import Norms

_MOST = 16
"""More than any model has; a file that claims more would be believed for gigabytes."""


@record
class GuessNames:
    """What checkpoints call the ends of a head."""

    embedding_norm: str
    stream_norm: str
    join: str
    norm: str


def count_of_guesses(config: ConfigJSON, *names: str, default: int = 0) -> int:
    """Return how many heads a checkpoint may have, by whichever name their number goes.

    Raises:
        UnsupportedModelError: It is no number, or none that a model has.
    """
    named = next((name for name in names if config.value(name) is not None), names[0])
    count = config.integer(named, default)
    if not 0 <= count <= _MOST:
        raise UnsupportedModelError(f"{named} is {count}; expected 0 to {_MOST}")
    return count


def guess(
    index: int,
    names: GuessNames,
    norms: Norms,
    hidden: int,
    layer: Callable[[str], LayerSpec],
) -> GuessSpec:
    """Return head number ``index``; ``layer`` makes its layer of how its names in files begin."""
    ours = f"{SPARE_PREFIX}{index}"
    return GuessSpec(
        index=index,
        embedding_norm=norms.norm(f"{ours}.embedding_norm", names.embedding_norm, hidden),
        stream_norm=norms.norm(f"{ours}.stream_norm", names.stream_norm, hidden),
        join=linear(f"{ours}.join", [Piece(name=names.join, rows=hidden)], 2 * hidden),
        layer=layer(ours),
        norm=norms.norm(f"{ours}.final_norm", names.norm, hidden),
    )
