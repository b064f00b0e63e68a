"""Medusa's heads (arXiv:2401.10774): what a file has of them, and what they are as a model.

Each head guesses one token further on from the one state of the model that is there. So a chain of
guesses takes no steps of a small model, and a head knows nothing of the guesses before its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from zse.errors import FormatError
from zse.format.names import MEDUSA_PREFIX
from zse.models.parts import Piece, linear
from zse.models.spec import HeadSpec, MedusaSpec, ModelSpec

if TYPE_CHECKING:
    from zse.backends.operations import Forward, Operations, Sampled, StateOperations, Step
    from zse.format.spec import ZSEHeader

MOST_HEADS = 16
MOST_BLOCKS = 16
"""More than anybody trains; a file that claims more would be believed for gigabytes."""


def medusa_head(
    index: int, num_blocks: int, *, hidden: int, vocab_size: int, prefix: str = ""
) -> MedusaSpec:
    """Return head number ``index``; names in its checkpoint begin with ``prefix``."""
    ours, theirs = f"{MEDUSA_PREFIX}{index}", f"{prefix}{index}"
    blocks = tuple(
        linear(
            f"{ours}.blocks.{block}",
            [Piece(name=f"{theirs}.{block}.linear", rows=hidden)],
            hidden,
            bias=True,
        )
        for block in range(num_blocks)
    )
    last = Piece(name=f"{theirs}.{num_blocks}", rows=vocab_size)
    matrix = linear(f"{ours}.head", [last], hidden, kind="head").weight
    return MedusaSpec(index=index, blocks=blocks, matrix=matrix)


def stored_heads(header: ZSEHeader, spec: ModelSpec) -> tuple[MedusaSpec, ...]:
    """Return the heads that a file has for its model, in their order.

    Raises:
        FormatError: One between them is missing, there are too many, or a tensor of one is missing
            or of another shape.
    """
    groups = [group.name for group in header.groups if group.name.startswith(MEDUSA_PREFIX)]
    if len(groups) > MOST_HEADS:
        raise FormatError(f"{len(groups)} groups {MEDUSA_PREFIX}*; expected {MOST_HEADS} at most")
    found = {entry.name: entry.shape for entry in header.tensors}
    heads = []
    for index, name in enumerate(sorted(groups, key=lambda one: (len(one), one))):
        if name != f"{MEDUSA_PREFIX}{index}":
            raise FormatError(f"group {name} stands where {MEDUSA_PREFIX}{index} is expected")
        count = sum(f"{name}.blocks.{block}.weight" in found for block in range(MOST_BLOCKS))
        head = medusa_head(index, count, hidden=spec.hidden_size, vocab_size=spec.vocab_size)
        for weight in head.weights():
            if found.get(weight.name) != weight.shape:
                shape = found.get(weight.name, "none: it is missing")
                raise FormatError(
                    f"tensor {weight.name} has shape {shape}; the model calls for "
                    f"{list(weight.shape)}"
                )
        heads.append(head)
    return tuple(heads)


def model_of(spec: ModelSpec, heads: tuple[MedusaSpec, ...]) -> ModelSpec:
    """Return heads as a model without layers, whose tokens come with states of ``spec``."""
    head = HeadSpec(norm=None, weight=heads[0].matrix)
    embedding = replace(spec.embedding, layer_inputs=None, join=None)
    return replace(spec, embedding=embedding, layers=(), head=head, guesses=(), medusa=heads)


def forward_of_head(spec: ModelSpec, index: int) -> Forward:
    """Return the pass of one head of ``model_of``: its blocks, then the choice of tokens."""

    def forward(ops: Operations, step: Step) -> Sampled:
        on_states, weights = cast("StateOperations", ops), ops.ends.medusa[index]
        stream = on_states.enter_states(step)
        for block in weights.blocks:
            stream = on_states.add_bent(step, stream, block)
        head = replace(spec.head, weight=spec.medusa[index].matrix)
        return on_states.choose_by(step, stream, weights.matrix, head)

    return forward
