"""Runs a program on a step: one call, or several where there are more rows than fit at once."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from ctypes import byref
from typing import TYPE_CHECKING, NamedTuple

from zse.backends.cpu.sampling import ROW_BYTES
from zse.backends.cpu.step import ROWS_WORDS
from zse.kernels.native.codes import Register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.backends.cpu.program import Program
    from zse.backends.cpu.registers import Registers
    from zse.backends.cpu.step import Step
    from zse.kernels.native.library import Pool


class Stream(NamedTuple):
    """What comes with a step's tokens, or goes on besides: float32 [rows, width].

    The residual stream where the layers are not all of a model; or states.
    """

    width: int
    incoming: memoryview[float] | None
    """Behind the layers before these; None: tokens come."""
    outgoing: memoryview[float] | None
    """Is filled with what is behind these layers; None: tokens go."""
    enters: Register = Register.RESIDUAL
    leaves: Register = Register.RESIDUAL

    def enter(self, registers: Registers, first: int, end: int) -> None:
        if self.incoming is not None:
            into = registers.rows(self.enters, end - first, self.width)
            into[:] = self.incoming[first * self.width : end * self.width]

    def leave(self, registers: Registers, first: int, end: int) -> None:
        if self.outgoing is not None:
            found = registers.rows(self.leaves, end - first, self.width)
            self.outgoing[first * self.width : end * self.width] = found


def computed(
    pool: Pool,
    registers: Registers,
    program: Program,
    step: Step,
    wanted: list[int],
    *,
    sampling: int = 0,
    logits: int = 0,
    at_once: int = 0,
    stream: Stream | None = None,
) -> Iterator[tuple[int, int]]:
    """Compute a step; yield the first and the number of wanted rows while registers hold them.

    Args:
        wanted: Rows of the step whose logits are asked for, ascending.
        sampling: Address of a ``struct zse_sampling`` for each of them; 0: nothing is sampled.
        logits: Where the logits of all of them go; 0: into the register, some at a time.
        at_once: Rows of logits that are computed at once where ``logits`` says where they go; 0:
            all.
        stream: What comes from the layers before these, and goes to those behind them.
    """
    run, handle, structure = program.run_by(pool.library.run), pool.handle, byref(registers.step)
    most = (at_once or len(wanted)) if logits else registers.most_wanted
    for first, end in step.pieces():
        place, behind = bisect_left(wanted, first), bisect_left(wanted, end)
        count = min(behind - place, most)
        registers.fit(end - first, 1 if logits and not at_once else count)
        if stream is not None:
            stream.enter(registers, first, end)
        attending = step.attending(first, end)
        operations: object = program.operations
        num_operations = program.num_operations if count else program.num_layers
        while True:
            rows = array("i", [row - first for row in wanted[place : place + count]])
            if logits:
                registers.put_logits(logits + place * registers.logits_bytes)
            registers.write(
                end - first,
                max(min(step.single_rows, end) - first, 0),
                count,
                len(attending) // ROWS_WORDS // step.num_groups,
                *step.addresses(first, end),
                rows.buffer_info()[0],
                attending.buffer_info()[0],
                sampling and sampling + place * ROW_BYTES,
                step.cache.address,
                step.states.address,
                0,
                step.adapters_from(first),
            )
            run(handle, operations, num_operations, structure)
            if stream is not None:
                stream.leave(registers, first, end)
            if count:
                yield place, count
            place += count
            count = min(behind - place, most)
            if count <= 0:
                break
            operations, num_operations = program.head, program.num_head
