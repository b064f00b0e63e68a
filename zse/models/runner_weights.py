"""The weights of a runner outside of steps: awaited, lent, left to the model that comes next."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.abilities import BindsHeads, Lends, Retainable, Settles
from zse.models.decoder import forward_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from zse.backends.gpu.retained import Retained
    from zse.backends.operations import Backend, Forward
    from zse.backends.ranks import Crew
    from zse.format.model_file import ModelFile
    from zse.models.spec import MedusaSpec, ModelSpec
    from zse.stream.peers.lending import Lendable
    from zse.stream.weights import StreamFacts


class RunnerWeights:
    """What a ``ModelRunner`` does with weights, under the lock that keeps steps apart."""

    _backend: Backend
    _crew: Crew | None
    _computed: ModelSpec
    _forward: Forward
    _lock: threading.Lock
    _is_asked = False
    """Whether a step was ever asked for, also of one that waits for the lock."""
    _expected_tokens = 0
    """Of the prompt of that step, where one was told of before."""

    @property
    def most_batch_tokens(self) -> int:
        """Tokens of a step at most, where the backend takes more than it was asked to; else 0."""
        return getattr(self._backend, "most_batch_tokens", 0)

    @property
    def streaming(self) -> StreamFacts | None:
        """What of the model streams through memory; None where all of it is there."""
        return getattr(self._backend, "streaming", None)

    def settle(self) -> None:
        """Wait until all weights are there; steps until then wait for what they need themselves.

        Raises:
            FormatError, StoreError, DeviceError: What kept them from it; steps raise it, too.
        """
        backend, has_more = self._backend, True
        if not isinstance(backend, Settles):
            return
        if self._expected_tokens:
            ends = forward_of(replace(self._computed, layers=()))
            with self._lock:
                backend.prepare_expected(ends, self._forward, self._expected_tokens)
        while has_more and not self._is_asked:
            with self._lock:  # a step that is asked for waits for no more than this
                has_more = backend.prepare_more()
        backend.settle()

    def expect_step(self, num_tokens: int = 0) -> None:
        """Note that a step comes at once: ``settle`` prepares nothing that would be in its way.

        Args:
            num_tokens: About how many tokens its prompt has; 0 where nobody knows.
        """
        self._is_asked = True
        self._expected_tokens = min(num_tokens, self.most_batch_tokens)

    def stop_settling(self) -> None:
        """Let no more weights come; who waits for them gets ``LoadCancelledError``."""
        if isinstance(self._backend, Settles):
            self._backend.stop_settling()

    def retain(self) -> Retained | None:
        """Have ``close`` leave the device's memory to a model of the same shape.

        None where that cannot be. Whoever calls this takes it, gives it up or calls ``release``.
        """
        backend = self._backend
        if self._crew is not None:
            return None  # the others' memory goes with their processes
        return backend.retain() if isinstance(backend, Retainable) else None

    def release(self) -> None:
        """Undo ``retain``."""
        if isinstance(self._backend, Retainable):
            self._backend.release()

    def lendable(self) -> Lendable | None:
        """Return the weights as other processes of the host may copy them; None where none may."""
        return self._backend.lendable() if isinstance(self._backend, Lends) else None

    def bind_heads(self, reader: ModelFile, heads: Sequence[MedusaSpec]) -> None:
        """Load heads that guess beside the model, where its device computes them itself.

        Raises:
            DeviceError: There is no memory for them.
            StoreError: The file failed on its way.
        """
        from zse.stream.opening import source_of

        assert isinstance(self._backend, BindsHeads)
        with closing(source_of(reader)) as source, self._lock:
            self._backend.bind_heads(reader.header, source, heads)

    def release_heads(self) -> None:
        """Undo ``bind_heads``."""
        assert isinstance(self._backend, BindsHeads)
        with self._lock:
            self._backend.release_heads()
