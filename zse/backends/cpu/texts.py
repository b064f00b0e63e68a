"""Whole texts: steps that are cut between them, and what makes a vector or a score of each."""

from __future__ import annotations

from array import array
from ctypes import byref, pointer
from typing import TYPE_CHECKING, Any

from zse.backends.cpu.program import Program
from zse.backends.cpu.step import ROWS_WORDS, Step
from zse.backends.resident import ROWS_AT_ONCE
from zse.kernels.native import codes
from zse.kernels.native.codes import Kind, Register, RowSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.backends.cpu.recording import Recording
    from zse.backends.cpu.registers import Registers
    from zse.backends.cpu.stretches import Stretches
    from zse.backends.handles import EndWeights
    from zse.kernels.native.library import Pool
    from zse.models.spec import HeadSpec, Pooling

_POOLINGS = {
    "mean": codes.Pooling.MEAN,
    "first": codes.Pooling.FIRST,
    "last": codes.Pooling.LAST,
}


class TextStep(Step):
    """A batch whose chunks are whole texts: their tokens see each other, so none is cut."""

    @property
    def types(self) -> array[int]:
        """1 in the second text of a pair, else 0: one a row."""
        found: list[int] = []
        for index in self.order:
            chunk = self.batch.chunks[index]
            count = len(chunk.token_ids)
            first = count if chunk.second_from is None else chunk.second_from
            found += [0] * first + [1] * (count - first)
        return array("i", found)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Return the first row and the end of texts that are computed at once."""
        first = end = 0
        for index in self.order:
            count = len(self.batch.chunks[index].token_ids)
            if end > first and end + count - first > ROWS_AT_ONCE:
                yield first, end
                first = end
            end += count
        yield first, end


def text_program(
    recording: Recording,
    ends: EndWeights,
    head: HeadSpec,
    pooling: Pooling,
    *,
    width: int,
    stretches: Stretches | None = None,
) -> Program:
    """Return what was recorded of the layers, and behind it what makes numbers of each text.

    These are in ``Register.ADDED``, a row a text.
    """
    states = recording.normed_in_place(Register.RESIDUAL, ends.final_norm, width)
    vectors = recording.record(
        Kind.POOL, Register.ADDED, input=states, width=width, pooling=_POOLINGS[pooling]
    )
    classifier, weights = head.classifier, ends.classifier
    if classifier is not None and weights is not None:
        texts: dict[str, Any] = {"row_set": RowSet.WANTED}
        inner = recording.multiply(vectors, weights.dense, Register.NORMED, **texts)
        activation = codes.Activation[classifier.activation.upper()]
        recording.record(
            Kind.ACTIVATE, inner, input=inner, width=width, activation=activation, **texts
        )
        if weights.norm is not None:
            norm = pointer(weights.norm)
            recording.record(Kind.NORM, inner, input=inner, norm=norm, width=width, **texts)
        recording.multiply(inner, weights.output, vectors, **texts)
    return Program(recording.take(), [], stretches)


def computed_texts(
    pool: Pool, registers: Registers, program: Program, step: TextStep
) -> Iterator[int]:
    """Compute whole texts; yield how many, while registers hold what has become of them."""
    types = step.types
    types_address, _ = types.buffer_info()
    for first, end in step.pieces():
        attending = step.attending(first, end)
        num_texts = len(attending) // ROWS_WORDS
        each = array("i", range(num_texts))
        registers.fit(end - first, 1)
        registers.write(
            end - first,
            0,
            num_texts,
            num_texts,
            *step.addresses(first, end),
            each.buffer_info()[0],
            attending.buffer_info()[0],
            0,
            step.cache.address,
            step.states.address,
            types_address + 4 * first,
            0,
        )
        program.run_by(pool.library.run)(
            pool.handle, program.operations, program.num_operations, byref(registers.step)
        )
        yield num_texts
