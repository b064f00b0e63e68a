"""Heads that guess the token after the next one: what checkpoints call their parts.

Checkpoints of many makers have one or two of them (multi-token prediction), which other tools
often leave out. What a file keeps of them is whole, or nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import FormatError, UnsupportedModelError
from zse.format.names import SPARE_PREFIX
from zse.models.parts import Piece, linear
from zse.models.spec import GuessSpec, JoinSpec, ModelSpec, weights_of
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.format.spec import ZSEHeader
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


def stored_guesses(header: ZSEHeader, spec: ModelSpec) -> tuple[GuessSpec, ...]:
    """Return the heads that a file has, whole and as its model's configuration calls for them.

    Raises:
        FormatError: A tensor of one is missing, or of another shape.
    """
    names = {group.name for group in header.groups}
    found = {entry.name: entry.shape for entry in header.tensors}
    heads = tuple(head for head in spec.guesses if head.name in names)
    for weight in (weight for head in heads for weight in weights_of(head)):
        if found.get(weight.name) != weight.shape:
            raise FormatError(
                f"tensor {weight.name} has shape {found.get(weight.name, 'none: it is missing')}; "
                f"the model config calls for {list(weight.shape)}"
            )
    return heads


def model_of(spec: ModelSpec, head: GuessSpec) -> ModelSpec:
    """Return a head as a model of one layer, whose tokens come with states of ``spec``.

    The stream of a token is made of its embedding and of the state of the token before it; what is
    chosen behind it follows the token (arXiv:2412.19437, section 2.2). Its own normed states stand
    for the model's where it goes on from its own guesses.
    """
    join = JoinSpec(
        embedding_norm=head.embedding_norm, state_norm=head.stream_norm, linear=head.join
    )
    return replace(
        spec,
        embedding=replace(spec.embedding, layer_inputs=None, join=join),
        layers=(replace(head.layer, index=0),),
        head=replace(spec.head, norm=head.norm),
        guesses=(),
    )
