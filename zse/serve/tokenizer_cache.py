"""Tokenizers of models that left: the next model with the same files need not read them again.

They are known by the digests of the sections that they are made of, so models that were tuned from
one base share one, and a file that was replaced gets its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from zse.text.facts import BINARY_SECTION

if TYPE_CHECKING:
    from zse.format.model_file import ModelFile
    from zse.serve.state import LoadedModel
    from zse.text.tokenizer import Tokenizer

_MOST = 16
_NAMES = frozenset(
    {BINARY_SECTION, "tokenizer.json", "tokenizer_config.json", "config.json"}
    | {"generation_config.json"}
)
"""What a tokenizer is made of."""

Digests = tuple[tuple[str, str], ...]


class TokenizerCache:
    """The tokenizers of the models that left last, up to 16; safe to use from any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Digests, Tokenizer] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, reader: ModelFile) -> Tokenizer | None:
        """Return the tokenizer of a file, where it is here."""
        with self._lock:
            return self._kept.get(_digests_of(reader))

    def put(self, model: LoadedModel) -> None:
        """Keep the tokenizer of a model that leaves."""
        for reader in model.resources[:1]:
            with self._lock:
                key = _digests_of(reader)
                self._kept[key] = model.tokenizer
                self._kept.move_to_end(key)
                while len(self._kept) > _MOST:
                    self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()


def _digests_of(reader: ModelFile) -> Digests:
    sections = reader.header.sections
    return tuple(sorted((one.name, one.sha256) for one in sections if one.name in _NAMES))
