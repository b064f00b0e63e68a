"""A model that takes the place of one that leaves, as a server's swap has it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from zse.backends import ModelLoad
from zse.backends.gpu import arrival
from zse.backends.gpu.arrival import Arrival
from zse.backends.gpu.open import open_gpu_backend
from zse.format import ZSEReader
from zse.models.decoder import forward_of
from zse.models.runner import ModelRunner, spec_of
from zse.options import load_options
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SHAPE: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 64,
    "vocab_size": 72,
    "max_position": 64,
    "tie_word_embeddings": False,
}
PROMPT = [5, 17, 70, 33]


def takes_over(runner: ModelRunner, path: Path) -> tuple[ModelRunner, int]:
    """Close a runner and open another file in its place; return it and the bytes that moved."""
    retained = runner.retain()
    assert retained is not None
    assert retained.takes(path)
    assert not retained.take(), "its model still runs"
    runner.close()
    assert retained.take()
    reader = ZSEReader(path)
    begun = Arrival.into(retained, reader)
    spec = spec_of(reader)
    load = ModelLoad(reader=reader, spec=spec, options=load_options(), forward=forward_of(spec))
    backend = open_gpu_backend(begun, load)
    owned = ExitStack()
    owned.callback(reader.close)
    owned.callback(backend.close)
    other = ModelRunner(backend, spec, owned=owned, max_position=spec.max_position)
    return other, begun.num_bytes()[1]


class _HeldFile(LocalSource):
    """A file that is read when it may be, by threads of Python."""

    kind = "peers"

    def __init__(self, path: Path, may_read: threading.Event) -> None:
        super().__init__(path, direct="never")
        self._may_read = may_read

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        assert self._may_read.wait(60)
        super().read_into(offset_bytes, view)


def hold_weights(monkeypatch: pytest.MonkeyPatch, path: Path) -> threading.Event:
    """Have the weights of a file come when the event that is returned is set."""
    may_read = threading.Event()
    monkeypatch.setattr(arrival, "source_of", lambda _reader: _HeldFile(path, may_read))
    return may_read
