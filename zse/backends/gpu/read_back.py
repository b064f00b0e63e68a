"""Results of whole sequences, read back to the host: logits of each token, vectors of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.operations import GPUOperations
from zse.backends.types import logit_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.gpu.forward import Residual, Step
    from zse.backends.gpu.texts import TextOperations
    from zse.backends.types import LogitRows
    from zse.device.gpu import Gpu, Stream
    from zse.models.spec import HeadSpec, Pooling


class ReadBack(GPUOperations):
    """See ``zse.backends.operations.Backend``, of which this is what is computed outside a pool."""

    _gpu: Gpu
    _stream: Stream
    _texts: TextOperations | None
    check_ranks: Callable[[], None]

    def lm_head(self, step: Step, residual: Residual, head: HeadSpec) -> bytes:
        """Return float32 logits of the wanted rows on the host."""
        self.write_logits(step, residual, head)
        length = step.shape.wanted * self._model.spec.vocab_size * 4
        return self._read_back(step.scratch.logits, length)

    def pool(self, step: Step, residual: Residual, pooling: Pooling) -> Sequence[Sequence[float]]:
        """Return the vector of each text of a step, or its scores."""
        assert self._texts is not None
        head = self._model.spec.head
        found = self._texts.write_numbers(step, residual, self.ends, head, pooling)
        length = step.shape.runs * found.columns * 4
        numbers = memoryview(self._read_back(found.address, length)).cast("f")
        each = range(0, len(numbers), found.columns)
        return [numbers[at : at + found.columns].tolist() for at in each]

    def _read_back(self, address: int, length_bytes: int) -> bytes:
        """Return what lies at an address when all that was enqueued is done."""
        host = self._gpu.allocate_host(length_bytes)
        try:
            self._gpu.copy_to_host(host.address, address, length_bytes, self._stream)
            self._stream.synchronize()
            self.check_ranks()
            return bytes(host.view[:length_bytes])
        finally:
            host.free()

    def join_rows(self, parts: Sequence[bytes]) -> LogitRows:
        joined = bytearray().join(parts)  # not bytes: a view of it may be written to
        return logit_rows(memoryview(joined), self._model.spec.vocab_size)
