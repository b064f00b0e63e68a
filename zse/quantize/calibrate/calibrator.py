"""Calibration of one conversion: its text, and what each layer's matrices make of it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from zse.errors import UsageError
from zse.quantize.calibrate.grids import SCHEMES
from zse.quantize.calibrate.rounding import Rounding
from zse.quantize.calibrate.support import check_walkable
from zse.quantize.calibrate.texts import SEQUENCE_TOKENS, sequences_of
from zse.quantize.calibrate.walk import Walk
from zse.quantize.place_of_work import CPU
from zse.quantize.text_files import TOKENIZER
from zse.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from zse.format.layout import PlannedTensor
    from zse.quantize.calibrate.moments import Moments
    from zse.quantize.calibrate.texts import CalibrationText
    from zse.quantize.checkpoint import Checkpoint


METHOD = "gptq"
"""How codes are chosen, in a file's header: scales by the squares of inputs, codes by feedback."""


class Calibrator:
    """Says how each layer's matrices are rounded, layer by layer.

    Args:
        checkpoint: What is converted.
        text: What its model reads.
        sections: The file's, for the tokenizer.
        device: Where the model computes.

    Raises:
        UnsupportedModelError: The model cannot be calibrated.
        UsageError: The checkpoint has no tokenizer.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        text: CalibrationText,
        sections: Mapping[str, bytes],
        device: torch.device = CPU,
    ) -> None:
        check_walkable(checkpoint)
        if TOKENIZER not in sections:
            raise UsageError("a model without a tokenizer reads no text: it cannot be calibrated")
        tokenizer = Tokenizer.from_sections(sections.get)
        self._layers = {layer.name: layer for layer in checkpoint.spec.layers}
        with _all_threads():
            longest = min(SEQUENCE_TOKENS, checkpoint.spec.max_position)
            sequences = sequences_of(text, tokenizer, sections.get, longest=longest)
            self._walk = Walk(checkpoint, sequences, device)
        self.facts: dict[str, str | int] = {
            **text.to_json(),
            "tokens": self._walk.num_tokens,
            "method": METHOD,
        }
        """What a file's header says of it."""

    @property
    def layers(self) -> frozenset[str]:
        """Names of the groups that a text goes through."""
        return frozenset(self._layers)

    def walk(
        self,
        group: str,
        *,
        is_counting: bool,
        size_bytes: int = 0,
        on_bytes: Callable[[int], None] = lambda _count: None,
    ) -> dict[str, Sequence[Moments]]:
        """Take the text through the next layer.

        Args:
            group: Name of every layer once, in their order.
            is_counting: False where the layer's weights are written already.
            size_bytes: What the layer counts as progress.
            on_bytes: Called with what was done of that since.

        Returns:
            Of each matrix by name the moments of its inputs; of a stack, those of each.
        """
        layer = self._layers[group]
        with _all_threads():
            found = self._walk.through(
                layer, is_counting=is_counting, size_bytes=size_bytes, on_bytes=on_bytes
            )
        return dict(found)


def rounding_of(moments: Sequence[Moments] | None, planned: PlannedTensor) -> Rounding | None:
    """Return how a matrix is rounded whose inputs have these moments, which are used up.

    None: without data, since nothing is known of them or its scheme has no use for it.
    """
    if moments is None or planned.scheme not in SCHEMES:
        return None
    with _all_threads():
        return Rounding(moments)


@contextmanager
def _all_threads() -> Iterator[None]:
    """Let torch use every CPU for large products: conversion else keeps it to one a thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
