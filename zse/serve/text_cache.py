"""Tokenizers and chat templates of models that left: the next one with the same need not make them.

They are known by the digests of the sections that they are made of, so models that were tuned from
one base share them, and a file that was replaced gets its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from zse.text.facts import BINARY_SECTION

if TYPE_CHECKING:
    from zse.format.model_file import ModelFile
    from zse.serve.state import LoadedModel
    from zse.text.template import ChatTemplate
    from zse.text.tokenizer import Tokenizer

_MOST = 16
_OF_TEMPLATES = frozenset({"tokenizer_config.json", "chat_template.jinja"})
_OF_TOKENIZERS = frozenset(
    {BINARY_SECTION, "tokenizer.json", "tokenizer_config.json", "config.json"}
    | {"generation_config.json"}
)
"""The sections that each is made of."""

Digests = tuple[tuple[str, str], ...]
_Made = TypeVar("_Made")


class TextCache:
    """What made text of the models that left last, of up to 16; safe to use from any thread."""

    def __init__(self) -> None:
        self._tokenizers: _Kept[Tokenizer] = _Kept(_OF_TOKENIZERS)
        self._templates: _Kept[ChatTemplate] = _Kept(_OF_TEMPLATES)

    def __len__(self) -> int:
        return len(self._tokenizers)

    def tokenizer(self, reader: ModelFile) -> Tokenizer | None:
        """Return the tokenizer of a file, where it is here."""
        return self._tokenizers.get(reader)

    def template(self, reader: ModelFile) -> ChatTemplate | None:
        """Return the chat template of a file, where it is here."""
        return self._templates.get(reader)

    def put(self, model: LoadedModel) -> None:
        """Keep those of a model that leaves."""
        for reader in model.resources[:1]:
            self._tokenizers.put(reader, model.tokenizer)
            if model.template is not None:
                self._templates.put(reader, model.template)

    def clear(self) -> None:
        """Forget all."""
        self._tokenizers.clear()
        self._templates.clear()


class _Kept(Generic[_Made]):
    """Things of one kind, the one that was put last at the end.

    Args:
        sections: Names of what they are made of; absent ones count as such.
    """

    def __init__(self, sections: frozenset[str]) -> None:
        self._sections = sections
        self._kept: OrderedDict[Digests, _Made] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, reader: ModelFile) -> _Made | None:
        with self._lock:
            return self._kept.get(self._digests_of(reader))

    def put(self, reader: ModelFile, made: _Made) -> None:
        key = self._digests_of(reader)
        with self._lock:
            self._kept[key] = made
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def _digests_of(self, reader: ModelFile) -> Digests:
        sections = reader.header.sections
        return tuple(
            sorted((one.name, one.sha256) for one in sections if one.name in self._sections)
        )
