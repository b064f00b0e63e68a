"""Logits that are kept in a folder, so that many models are held against one that reads once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from zse.errors import UsageError
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from zse.evaluate.models import Reader


class KeptReader:
    """A model whose answers lie in files; it is loaded for the first window that is not there.

    A window takes 4 bytes for each token and entry of the vocabulary: 0.3 GB for 512 tokens and
    150,000 entries. What is kept belongs to a path's files as they are: names, sizes, times.

    Args:
        folder: Where logits are kept; it is made.
        model: The checkpoint's folder, or the file.
        load: Returns the model.

    Raises:
        UsageError: The folder is none, or cannot be written.
    """

    def __init__(self, folder: Path, model: Path, load: Callable[[], Reader]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"logits cannot be kept in {folder}: {error}") from error
        self._folder = folder
        self._key = _key_of(model)
        self._load = load
        self._reader: Reader | None = None
        self._vocab_size = 0

    @property
    def vocab_size(self) -> int:
        if not self._vocab_size:
            path = self._folder / f"{self._key}.vocabulary"
            if not path.is_file():
                write_whole(path, str(self._loaded().vocab_size).encode())
            self._vocab_size = int(path.read_text())
        return self._vocab_size

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return [tokens, vocabulary]: row i is about token i + 1."""
        ids = np.asarray(token_ids, np.int64)
        name = hashlib.sha256(self._key.encode() + ids.tobytes()).hexdigest()[:32]
        path, shape = self._folder / f"{name}.logits", (len(ids), self.vocab_size)
        if path.is_file():
            if path.stat().st_size == 4 * shape[0] * shape[1]:
                found: NDArray[np.float32] = np.fromfile(path, np.float32).reshape(shape)
                return found
            path.unlink()
        rows = np.ascontiguousarray(self._loaded().logits(token_ids), np.float32)
        write_whole(path, rows.tobytes())
        return rows

    def _loaded(self) -> Reader:
        if self._reader is None:
            self._reader = self._load()
        return self._reader


def _key_of(model: Path) -> str:
    """Return what a model's files are told by: their names, sizes and times of change."""
    paths = sorted(model.iterdir()) if model.is_dir() else [model]
    found = [(str(path.resolve()), path.stat()) for path in paths if path.is_file()]
    facts = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
