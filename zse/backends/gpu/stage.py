"""Some layers of a model on a GPU, as a node of a mesh computes them: see ``cpu.stage``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.host_flow import HostFlow
from zse.backends.ranks import Share
from zse.backends.stage_checks import check_image, num_rows_of
from zse.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.gpu.backend import GPUBackend
    from zse.backends.ranks import Gift
    from zse.backends.types import Answers, DeviceUsed, StepBatch
    from zse.kernels.native.library import Library
    from zse.models.stage import StageSpec


class AloneLink:
    """See ``zse.backends.ranks.RankLink``: of a device that divides no layer with another."""

    share = Share(rank=0, ranks=1)
    broken_address = 0

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        found = f"{len(payload)} bytes and {len(descriptors)} files"
        raise DeviceError(f"{found} were to go to other ranks; there are none")

    def least(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def memory(self, length_bytes: int) -> int:
        raise DeviceError(f"{length_bytes} bytes were to be shared with ranks; there are none")

    def check(self) -> None:
        """Do nothing: there are no others."""


class GPUStage:
    """Layers of one model, their share of its file, and their keys and values.

    Args:
        stage: Which layers.
        backend: That computes them; the stream comes to it from the host, and goes back there.
        library: That writes rows for wires.
        on_close: Called behind the backend's end.
    """

    def __init__(
        self,
        stage: StageSpec,
        backend: GPUBackend,
        library: Library,
        on_close: Callable[[], None],
    ) -> None:
        self.stage, self.library = stage, library
        self._backend, self._on_close = backend, on_close
        flow = backend.flow
        assert isinstance(flow, HostFlow)
        self._flow = flow

    @property
    def width(self) -> int:
        """Numbers in a row of the stream."""
        return self.stage.model.hidden_size

    @property
    def block_size(self) -> int:
        return self._backend.block_size

    @property
    def num_blocks(self) -> int:
        return self._backend.num_blocks

    @property
    def device(self) -> DeviceUsed:
        return self._backend.device

    @property
    def layout(self) -> str:
        """What two stages have in common that can take each other's blocks."""
        return self._backend.kv_images.layout

    @property
    def computed_by(self) -> str:
        """What two stages have in common that compute the same bits: the GPU, too."""
        device = self._backend.device
        return f"{device.hardware}, {device.instructions}"

    def compute(
        self, batch: StepBatch, incoming: memoryview[float] | None = None
    ) -> memoryview[float] | Answers:
        """Compute a step of these layers; arguments and result are those of ``CPUStage.compute``.

        Raises:
            EngineError: The stream has other rows than the step, or the batch contradicts itself.
            DeviceError: Another rank of this stage is lost.
        """
        num_rows = num_rows_of(batch, self.stage, incoming)
        if incoming is not None:
            self._flow.put(incoming)
        pending = self._backend.submit(batch, self.stage.forward)
        pending.sample()
        answers = pending.wait()
        self._backend.check_ranks()
        return answers if self.stage.is_last else self._flow.taken(num_rows)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, with all layers of the stage."""
        return self._backend.kv_images.block_bytes[0]

    def read_kv(self, blocks: Sequence[int]) -> bytearray:
        """Return the content of some blocks, one behind the other, each with all layers."""
        image = bytearray(len(blocks) * self.block_bytes)
        self._backend.read_blocks(0, blocks, memoryview(image))
        return image

    def write_kv(self, blocks: Sequence[int], image: memoryview) -> None:
        """Write what ``read_kv`` of the same layers returned.

        Raises:
            EngineError: It has another length, or a block is not there.
        """
        num_blocks = self._backend.num_blocks
        check_image(blocks, image, block_bytes=self.block_bytes, num_blocks=num_blocks)
        self._backend.write_blocks(0, blocks, image)

    def memory_bytes(self) -> dict[str, int]:
        return self._backend.memory_bytes()

    def close(self) -> None:
        self._backend.close()
        self._on_close()
