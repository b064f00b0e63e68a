"""Times the forms of a matrix product on the GPU at hand, for `zse kernels tune`.

A product is timed as decoding runs it: in a graph, over copies of the matrix that together do not
fit the second-level cache, so that every launch reads its weights from memory.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.launcher import PackLauncher
from zse.format.schemes import Scheme, kernel_format
from zse.kernels.layout import ACTIVATION_GROUP, Plain, Quantized
from zse.kernels.linear.launch import linear
from zse.kernels.linear.plan import candidates, plan_linear, table_name
from zse.kernels.linear.weight import GROUPED_SCHEMES, LinearWeight, supports_quantized
from zse.kernels.tuning import Tuning
from zse.models.storage import DEFAULT_GROUP_SIZE
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zse.device.gpu import Event, Gpu, Stream
    from zse.kernels.layout import Activation
    from zse.kernels.linear.plan import LinearPlan
    from zse.kernels.pack import KernelPack
    from zse.kernels.tuning import Choice

SHAPES = (
    (3584, 4608), (3584, 3584), (3584, 37888), (18944, 3584), (3584, 152064),
    (5120, 7168), (5120, 5120), (5120, 27648), (13824, 5120), (5120, 55296), (27648, 5120),
    (8192, 10240), (8192, 8192), (8192, 59136), (29568, 8192),
    (4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096),
)  # fmt: skip
"""Columns and rows of the matrices of Qwen2.5 7B, 14B, 32B and 72B, and of Llama 3 8B."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SPLIT_SECONDS = 2e-7
"""What the reader of the sums pays for one more split, beside the bytes."""
WORTH_NOTING = 0.98
"""A choice enters the table when it takes at most this share of the planner's own time."""
_RANDOM_BYTES = 1024 * 1024
_MIN_LAUNCHES = 16
_MAX_COPIES = 64
_ALIGN = 256


@record
class Timing:
    """What was found for one product."""

    table: str
    shape: str
    best: LinearPlan
    best_seconds: float
    planned: LinearPlan
    """What the planner takes without a table."""
    planned_seconds: float

    @property
    def choice(self) -> Choice | None:
        """The table's entry, if it is worth one."""
        if self.best_seconds > self.planned_seconds * WORTH_NOTING:
            return None
        return {"variant": self.best.variant.key, "splits": self.best.splits}


class Bench:
    """Times products on one GPU; ``close`` gives everything back.

    Args:
        pack: Its kernels; forms that it lacks are not timed.
        repeats: Replays of which the fastest counts.
    """

    def __init__(self, gpu: Gpu, pack: KernelPack, *, repeats: int = 5) -> None:
        self._gpu = gpu
        self._pack = pack
        self._repeats = repeats
        self._stream: Stream = gpu.create_stream()
        self._start: Event = gpu.create_event(timing=True)
        self._end: Event = gpu.create_event(timing=True)
        self._launcher = PackLauncher(gpu, pack, self._stream)

    def close(self) -> None:
        for resource in (self._start, self._end, self._stream):
            resource.destroy()

    def measure(self, scheme: str, columns: int, rows: int, tokens: Sequence[int]) -> list[Timing]:
        """Time the products of one matrix with some numbers of tokens.

        Raises:
            UnsupportedModelError: No kernel multiplies such a matrix.
            DeviceError: The GPU has too little free memory, or a kernel failed.
        """
        name, group_size = kernel_format(Scheme(scheme), DEFAULT_GROUP_SIZE.get(scheme, 0))
        form = LinearWeight(
            scheme=name, rows=rows, columns=columns, weights=0, group_size=group_size
        )
        code_bytes = align_up(_code_bytes(form), _ALIGN)
        stride = code_bytes + align_up(form.size_bytes - _code_bytes(form), _ALIGN)
        copies = min(max(2, -(-2 * self._gpu.info.l2_bytes // stride)), _MAX_COPIES)
        block = self._gpu.allocate(stride * copies)
        try:
            self._fill(block.address, stride, code_bytes, copies)
            places = (block.address + index * stride for index in range(copies))
            weights = [replace(form, weights=it, scales=it + code_bytes) for it in places]
            kinds = [False, True] if supports_quantized(form) else [False]
            return [self._best(weights, count, kind) for count in tokens for kind in kinds]
        finally:
            self._stream.synchronize()
            block.free()

    def _fill(self, address: int, stride: int, code_bytes: int, copies: int) -> None:
        """Random codes, since constant ones draw less power; scales near one in any type."""
        host = self._gpu.allocate_host(_RANDOM_BYTES)
        try:
            host.view[:] = os.urandom(_RANDOM_BYTES)
            for offset in range(0, code_bytes, _RANDOM_BYTES):
                length_bytes = min(_RANDOM_BYTES, code_bytes - offset)
                self._gpu.copy_to_device(address + offset, host.address, length_bytes, self._stream)
            self._gpu.fill(address + code_bytes, 0x3C, stride - code_bytes, self._stream)
            for index in range(1, copies):
                self._gpu.copy_on_device(address + index * stride, address, stride, self._stream)
        finally:
            self._stream.synchronize()
            host.free()

    def _best(self, weights: list[LinearWeight], tokens: int, quantized: bool) -> Timing:
        plans = [
            plan
            for plan in candidates(weights[0], tokens, quantized=quantized)
            if plan.variant.key in self._pack
        ]
        planned = plan_linear(weights[0], tokens, quantized=quantized, device=self._launcher.device)
        output_bytes = max(plan.output_bytes for plan in (*plans, planned))
        columns = weights[0].columns
        block = self._gpu.allocate(
            align_up(output_bytes, _ALIGN) + 3 * align_up(tokens * columns * 2, _ALIGN)
        )
        try:
            self._gpu.fill(block.address, 0x3C, block.length_bytes, self._stream)
            inputs = _inputs(
                block.address + align_up(output_bytes, _ALIGN), tokens, columns, quantized
            )
            timed = {
                plan: self._seconds(weights, inputs, block.address, plan)
                for plan in dict.fromkeys([planned, *plans])
            }
        finally:
            self._stream.synchronize()
            block.free()
        best = min(timed, key=lambda plan: timed[plan])
        return Timing(
            table=table_name(weights[0], tokens, quantized=quantized),
            shape=f"{columns}x{weights[0].rows}",
            best=best,
            best_seconds=timed[best],
            planned=planned,
            planned_seconds=timed[planned],
        )

    def _seconds(
        self, weights: list[LinearWeight], inputs: Activation, outputs: int, plan: LinearPlan
    ) -> float:
        """Return the time of one launch with what its reader pays, in seconds."""
        self._launcher.prepare(plan.variant)
        rounds = -(-_MIN_LAUNCHES // len(weights))
        with self._gpu.capture(self._stream) as capture:
            for weight in weights * rounds:
                linear(self._launcher, weight, inputs, outputs, plan)
        replay = capture.graph.instantiate()
        capture.graph.destroy()
        fastest = float("inf")
        try:
            for _ in range(self._repeats + 1):  # the first one warms up
                self._start.record(self._stream)
                replay.launch(self._stream)
                self._end.record(self._stream)
                self._end.synchronize()
                fastest = min(fastest, self._end.elapsed_ms(self._start) / 1e3)
        finally:
            replay.destroy()
        bandwidth = self._gpu.info.bandwidth_bytes_per_second or 1e12
        reading = plan.output_bytes / bandwidth + plan.splits * SPLIT_SECONDS
        return fastest / (len(weights) * rounds) + reading


def tune(
    bench: Bench,
    device_name: str,
    *,
    schemes: Iterable[str],
    shapes: Sequence[tuple[int, int]],
    tokens: Sequence[int],
    progress: Callable[[Timing], None],
) -> Tuning:
    """Time every product; return the choices that beat the planner's own."""
    tables: dict[str, dict[str, Choice]] = {}
    for scheme in schemes:
        for columns, rows in shapes:
            for timing in bench.measure(scheme, columns, rows, tokens):
                progress(timing)
                if timing.choice is not None:
                    tables.setdefault(timing.table, {})[timing.shape] = timing.choice
    return Tuning(device_name=device_name, tables=tables)


def _code_bytes(form: LinearWeight) -> int:
    elements = form.rows * form.columns
    if form.scheme in GROUPED_SCHEMES:
        return elements // 2
    return elements if form.scheme == "int8" else elements * 2


def _inputs(address: int, tokens: int, columns: int, quantized: bool) -> Activation:
    if not quantized:
        return Plain(rows=tokens, columns=columns, values=address)
    codes = align_up(tokens * columns, _ALIGN)
    scales = align_up(tokens * (columns // ACTIVATION_GROUP) * 4, _ALIGN)
    return Quantized(
        rows=tokens,
        columns=columns,
        codes=address,
        scales=address + codes,
        sums=address + codes + scales,
    )
