"""Adapters in a GPU's memory: where each lies, and which rows of a step have which.

A handle says where its adapter lies, and rows of a step name that place: nothing that is captured
knows an adapter. Numbers are sent before the first step that uses them, in its stream, so they
come after whatever still reads what lay there before; memory is free again with the handle.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from zse.backends.gpu.adapter_image import (
    image_at,
    image_bytes,
    matrices_of,
    parts_by_record,
)
from zse.errors import LoRAError
from zse.kernels.low_rank.launch import (
    AdaptedMatrix,
    AdaptedRows,
    expand,
    packed_starts,
    shrink,
    workspace_bytes,
)
from zse.kernels.low_rank.launch_pairs import add_to_pairs, pairs_workspace_bytes
from zse.kernels.low_rank.variants import PLACE_BYTES, RANKS
from zse.units import GIB, align_up

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable

    from zse.backends.adapters import AdapterWeights
    from zse.backends.gpu.adapter_image import MatrixParts
    from zse.backends.gpu.forward import Step
    from zse.backends.gpu.inputs import InputShape
    from zse.backends.types import SequenceChunk
    from zse.device.gpu import Gpu, Stream
    from zse.kernels.layout import Activation, Partials, Plain
    from zse.kernels.route.launch import Choice
    from zse.models.spec import ModelSpec
    from zse.options import LoRAOptions


class GPUAdapter:
    """An adapter that steps may name; its memory is free again when nobody holds it."""

    def __init__(self, place: int, image: array[int], *, adapts_experts: bool) -> None:
        self.size_bytes = len(image)
        self.adapts_experts = adapts_experts
        self.place = place
        """Where it lies from the start of all, in units of ``PLACE_BYTES``."""
        self.unsent: array[int] | None = image
        """What the first step that uses it has to send."""


class AdapterPool:
    """The adapters of a model, in one block of memory that is set aside for them.

    Raises:
        UnsupportedModelError: The kernels do not take a matrix of the model.
    """

    def __init__(self, gpu: Gpu, spec: ModelSpec, options: LoRAOptions) -> None:
        self._gpu = gpu
        self._matrices = matrices_of(spec)
        self._most_rank = align_up(options.max_rank, RANKS)
        starts = [packed_starts(matrix.part_rows) for matrix in self._matrices]
        self._starts_bytes = b"".join(starts)
        stacks = [one for one in self._matrices if one.slots]
        self._of_experts = {
            matrix.name for one in stacks for matrix in (one.matrix, one.shared) if matrix
        }
        self._adapts_experts = False
        """Whether any adapter that steps had does; if not, nothing is launched for them."""
        self._block = gpu.allocate(options.gpu_bytes + len(self._starts_bytes))
        self.length_bytes = self._block.length_bytes
        self._ranges = Ranges(options.gpu_bytes // PLACE_BYTES)
        address = self._block.address + self._ranges.size * PLACE_BYTES
        self._by_name: dict[str, AdaptedMatrix] = {}
        for matrix, packed in zip(self._matrices, starts, strict=True):
            self._by_name[matrix.name] = AdaptedMatrix(
                first_record=matrix.first_record,
                starts=address,
                parts=len(matrix.part_rows),
                widest_part=max(matrix.part_rows),
                memory=self._block.address,
                most_rank=self._most_rank,
            )
            address += len(packed)

    def place_starts(self, stream: Stream) -> None:
        """Tell the device where the parts of matrices begin."""
        host = self._gpu.allocate_host(len(self._starts_bytes))
        try:
            host.view[: len(self._starts_bytes)] = self._starts_bytes
            target = self._block.address + self._ranges.size * PLACE_BYTES
            self._gpu.copy_to_device(target, host.address, len(self._starts_bytes), stream)
            stream.synchronize()
        finally:
            host.free()

    def bind(self, adapter: AdapterWeights) -> GPUAdapter:
        """Return a handle of an adapter; safe while steps run.

        Raises:
            LoRAError: A number in it is not finite, or there is no room for it.
        """
        parts = parts_by_record(adapter, self._matrices)
        needed = image_bytes(parts) // PLACE_BYTES
        place = self._ranges.take(needed)
        if place is None:
            raise LoRAError(
                f"the adapter '{adapter.name}' takes {_gib(needed)} of GPU memory; "
                f"{_gib(self._ranges.num_free)} of the {_gib(self._ranges.size)} that are set "
                "aside for adapters are free",
                hint="Set more aside with --lora-gib, or unload others first.",
            )
        try:
            image = image_at(place, parts, adapter.name)
            has_experts = not self._of_experts.isdisjoint(adapter.parts)
            handle = GPUAdapter(place, image, adapts_experts=has_experts)
        except BaseException:
            self._ranges.give_back(place, needed)
            raise
        weakref.finalize(handle, self._ranges.give_back, place, needed)
        return handle

    def send(self, chunks: Iterable[SequenceChunk], stream: Stream) -> bool:
        """Send what a step uses and the device has not got yet, in the step's stream.

        Returns whether it is the first that adds to experts: steps captured before do not.
        """
        added_before = self._adapts_experts
        for chunk in chunks:
            adapter = chunk.adapter
            if adapter is not None and (image := adapter.unsent) is not None:
                address, length = image.buffer_info()
                target = self._block.address + adapter.place * PLACE_BYTES
                self._gpu.copy_to_device(target, address, length, stream)
                stream.synchronize()  # the image goes, and its memory is not pinned
                adapter.unsent = None
                self._adapts_experts |= adapter.adapts_experts
        return self._adapts_experts and not added_before

    def shrink(self, step: Step, name: str, inputs: Activation) -> None:
        """Begin with what the rows' adapters add to the product of a matrix and its inputs.

        Nothing is done, here as in ``expand``, where none adds to the matrix.
        """
        if (matrix := self._by_name.get(name)) is not None:
            shrink(step.launcher, matrix, _adapted_rows(step), inputs, step.scratch.low_rank)

    def expand(self, step: Step, name: str, inputs: Activation, outputs: Partials | Plain) -> None:
        """Add the rest of it to the product."""
        if (matrix := self._by_name.get(name)) is not None:
            adapted, scratch = _adapted_rows(step), step.scratch.low_rank
            expand(step.launcher, matrix, adapted, inputs.columns, outputs, scratch)

    def add_to_pairs(
        self,
        step: Step,
        name: str,
        choice: Choice,
        inputs: Activation,
        outputs: Partials | Plain,
        *,
        is_down: bool,
    ) -> None:
        """Add what the rows' adapters make of the inputs of experts to their products."""
        if not self._adapts_experts:
            return
        add_to_pairs(
            step.launcher,
            self._by_name[name],
            _adapted_rows(step),
            choice,
            inputs,
            outputs,
            step.scratch.low_rank,
            is_down=is_down,
        )


class Ranges:
    """Which of so many units in a row are free; any thread may ask.

    What is given back waits in a queue, since a finalizer may run within any other call.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._given_back: deque[tuple[int, int]] = deque()
        self._free = [(0, size)] if size else []

    @property
    def num_free(self) -> int:
        with self._lock:
            self._collect()
            return sum(length for _, length in self._free)

    def take(self, length: int) -> int | None:
        """Return the first of so many free units in a row; None where there are none."""
        with self._lock:
            self._collect()
            for index, (start, free) in enumerate(self._free):
                if free >= length:
                    self._free[index : index + 1] = [(start + length, free - length)]
                    return start
        return None

    def give_back(self, start: int, length: int) -> None:
        self._given_back.append((start, length))

    def _collect(self) -> None:
        """Put what was given back among what is free, neighbours together."""
        while self._given_back:
            self._free.append(self._given_back.popleft())
        joined: list[tuple[int, int]] = []
        for start, length in sorted(self._free):
            if joined and sum(joined[-1]) == start:
                start, length = joined[-1][0], joined.pop()[1] + length
            if length:
                joined.append((start, length))
        self._free = joined


def _adapted_rows(step: Step) -> AdaptedRows:
    return AdaptedRows(
        tiles=step.shape.adapter_tiles,
        tile_rows=step.shape.adapter_tile_rows,
        rows=step.inputs.adapter_rows,
        places=step.inputs.adapter_places,
    )


def low_rank_bytes(spec: ModelSpec, options: LoRAOptions, shape: InputShape) -> int:
    """Return what the kernels hand on to each other in a step."""
    most_rank = align_up(options.max_rank, RANKS)
    tiled = {"tiles": shape.adapter_tiles, "tile_rows": shape.adapter_tile_rows}

    def needed(one: MatrixParts) -> int:
        parts = len(one.part_rows)
        if one.slots:
            return pairs_workspace_bytes(parts, most_rank, one.slots, **tiled)
        return workspace_bytes(one.columns, parts, most_rank, **tiled)

    return max(map(needed, matrices_of(spec)))


def _gib(places: int) -> str:
    return f"{places * PLACE_BYTES / GIB:.3f} GiB"
