"""Every token computed alone, so that its bits depend on nothing else in its step.

A row of a decode step sees its own sequence and nobody else. Rows of prompts are computed together
because that is faster; how many they are, and who stands beside them, then decides how sums are
rounded. ``--deterministic`` gives that up: prompts are rows like any others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions


def all_single(spec: ModelSpec, options: LoadOptions) -> bool:
    """Whether tokens of prompts are computed each on its own; a text that is read whole is not."""
    return options.device.deterministic and not spec.is_encoder


def can_be_single(spec: ModelSpec) -> bool:
    """Whether a model's prompts can be computed token by token with the same bits every time."""
    return not spec.is_encoder and not any(_obstacles(spec))


def check_deterministic(spec: ModelSpec, options: LoadOptions) -> None:
    """Refuse what cannot be computed so.

    Raises:
        UnsupportedModelError: A layer has a state that prompts go through in pieces.
    """
    if options.device.deterministic:
        refuse("--deterministic", _obstacles(spec))


def _obstacles(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for layer in spec.layers:
        if not is_attention(layer.mixer):
            yield f"layer {layer.index}", "linear attention"
