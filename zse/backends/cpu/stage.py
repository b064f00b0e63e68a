"""Some layers of a model on a CPU: the stream comes in and goes out, pages of these layers alone.

Keys and values lie in blocks of the same numbers on every stage, since one allocator gives them
out. Layers with a window keep whole sequences here, so that a table of blocks holds for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.cpu.backend import CPUBackend
from zse.backends.cpu.execution import Stream, computed
from zse.backends.cpu.page_mapping import PageArrival
from zse.backends.kv_groups import whole_groups
from zse.backends.stage_checks import check_image, num_rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.cpu.program import Program
    from zse.backends.cpu.weights import Tensors
    from zse.backends.kv_groups import KVGroups
    from zse.backends.ranks import RankPart
    from zse.backends.types import Answers, StepBatch
    from zse.format.reader import ZSEReader
    from zse.kernels.native.library import Library
    from zse.models.stage import StageSpec
    from zse.options import LoadOptions


class CPUStage(CPUBackend):
    """Layers of one model, their share of its file, and their keys and values.

    Args:
        reader: The file, which stays open while the stage lives; only its tensors' pages are read.
        stage: Which layers.
        options: Where and how; the number of blocks is given, the same for all stages.
        part: What this process has of each layer, where several share them; None: all.
    """

    def __init__(
        self,
        reader: ZSEReader,
        stage: StageSpec,
        options: LoadOptions,
        part: RankPart | None = None,
    ) -> None:
        self.stage = stage
        self._program: Program | None = None
        self._outgoing = bytearray()
        super().__init__(reader, stage.model, options, part)

    # --- what differs from a whole model ------------------------------------------------------

    def _count_weight_bytes(self, tensors: Tensors) -> int:
        read = self.stage.weight_names - self.stage.gathered
        return sum(tensors.entry(name).length_bytes for name in read)

    def _choose_groups(self, options: LoadOptions) -> KVGroups:  # noqa: ARG002
        return whole_groups(self._spec)

    def _begin_arrival(self, room_bytes: int) -> PageArrival | None:
        if self._weight_bytes > room_bytes:
            return None
        spans = self._weights.spans(without=self.stage.gathered)
        self._further = [PageArrival(*span) for span in spans[1:]]
        return PageArrival(*spans[0])

    # --- steps --------------------------------------------------------------------------------

    @property
    def layout(self) -> str:
        """What two stages have in common that can take each other's blocks."""
        return self.kv_images.layout

    @property
    def computed_by(self) -> str:
        """What two stages have in common that compute the same bits."""
        return self.device.instructions

    @property
    def width(self) -> int:
        """Numbers in a row of the stream."""
        return self._spec.hidden_size

    @property
    def library(self) -> Library:
        return self._library

    def compute(
        self, batch: StepBatch, incoming: memoryview[float] | None = None
    ) -> memoryview[float] | Answers:
        """Compute a step of these layers.

        Args:
            batch: The step; of stages before the last one sampling rows are not looked at.
            incoming: float32 [rows * width], in the order of ``Step``; None for the first stage.

        Returns:
            The same behind these layers, until the next step; of the last stage the tokens that
            follow each chunk.

        Raises:
            EngineError: The stream has other rows than the step, or the batch contradicts itself.
            DeviceError: Another rank of this stage is lost.
        """
        step = self.begin(batch)
        num_rows = num_rows_of(batch, self.stage, incoming)
        program = self._program
        if program is None:
            program = self._program = self.stage.forward(self, step)
        if self.stage.is_last:
            self._stream = Stream(self.width, incoming, None)
            return self._sample(program, step)
        # Kept: to make room for a piece of a prompt takes the system longer than to fill it.
        if len(self._outgoing) < (num_bytes := 4 * num_rows * self.width):
            self._outgoing = bytearray(num_bytes)
        outgoing = memoryview(self._outgoing)[:num_bytes].cast("f")
        stream = Stream(self.width, incoming, outgoing)
        for _ in computed(self._pool, self._registers, program, step, [], stream=stream):
            pass
        self._check_ranks()
        return outgoing

    # --- keys and values ----------------------------------------------------------------------

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, with all layers of the stage."""
        return self._sequences.block_bytes[0]

    def read_kv(self, blocks: Sequence[int]) -> bytearray:
        """Return the content of some blocks, one behind the other, each with all layers."""
        image = bytearray(len(blocks) * self.block_bytes)
        self._memory.blocks.read_blocks(0, blocks, memoryview(image))
        return image

    def write_kv(self, blocks: Sequence[int], image: memoryview) -> None:
        """Write what ``read_kv`` of the same layers returned.

        Raises:
            EngineError: It has another length, or a block is not there.
        """
        check_image(blocks, image, block_bytes=self.block_bytes, num_blocks=self.num_blocks)
        self._memory.blocks.write_blocks(0, blocks, image)

    def close(self) -> None:
        for arrival in self._further if self._pages is not None else ():
            arrival.close()
        self._program = None
        super().close()
