"""What a GPU backend says of itself: its model, its memory, and what of it others may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping

    from zse.backends.gpu.flow import StreamFlow
    from zse.backends.gpu.host_flow import HostFlow
    from zse.backends.gpu.memory import DeviceMemory
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.gpu.passes import Passes
    from zse.device.gpu import Block, Gpu
    from zse.models.spec import ModelSpec
    from zse.stream.peers.lending import Lendable
    from zse.stream.weights import StreamFacts


class Described:
    """See ``zse.backends.operations.Backend``, of which this is what changes nothing."""

    _gpu: Gpu
    _model: DeviceModel
    _memory: DeviceMemory
    _passes: Passes
    _flow: StreamFlow | HostFlow | None

    def memory_bytes(self) -> dict[str, int]:
        held = {
            "weights": self._model.weights.memory_bytes(),
            "kv_cache": self._memory.sequences.cache.length_bytes,
            "scratch": self._memory.scratch.length_bytes,
        }
        if kept := self._model.kept_weights.taken_bytes:
            held["prompt_weights"] = kept
        states, adapters = self._memory.sequences.states, self._model.adapters
        if states is not None:
            held["states"] = states.length_bytes
        if adapters is not None:
            held["adapters"] = adapters.length_bytes
        return held

    @property
    def streaming(self) -> StreamFacts | None:
        """What of the model streams through memory; None where all of it is there."""
        return self._passes.facts()

    @property
    def flow(self) -> StreamFlow | HostFlow | None:
        """The stream's way from stage to stage; None where all layers are here."""
        return self._flow

    @property
    def gpu(self) -> Gpu:
        return self._gpu

    @property
    def most_batch_tokens(self) -> int:
        """Tokens of a step at most: more than was asked for on a large GPU, if nobody asked."""
        return self._model.options.batch.max_batch_tokens

    @property
    def spec(self) -> ModelSpec:
        return self._model.spec

    @property
    def weights(self) -> Block:
        """What holds them."""
        return self._model.weights.block

    @property
    def key_factors(self) -> Mapping[int, array[float]]:
        """What keys are divided by, by layer; a layer without any is absent."""
        return self._model.key_factors.factors

    def lendable(self) -> Lendable | None:
        from zse.backends.gpu.lendable import lendable_of

        return lendable_of(self._gpu, self._model.weights.header, self.weights)
