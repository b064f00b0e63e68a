"""What users write is text: none of it becomes a control token, whatever a template makes of it.

A template writes control tokens as text (``<|im_end|>``), and the tokenizer reads them as tokens.
So before it is rendered, what users wrote is searched for such texts and for parts of them that the
template could complete. Where there are some, a mark is put into them: a character that is no text
in any language. Templates go on to work, since nothing else changes. In what they print, the text
is cut where a mark stands within a control token's text, and the pieces are encoded one by one.

An ordinary conversation is searched once, and rendered and encoded as if this file was not there.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from zse.text.facts import AddedToken
    from zse.text.tokenizer import Tokenizer

_MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Noncharacters: never assigned, for the use of one process."""
_WORDS = re.compile(r"\w+")
_PROSE = re.compile(r"[\w\s-]*")
_OWN_FIELDS = frozenset({"content", "reasoning_content", "reasoning", "thinking"})


class Values(NamedTuple):
    """What a template is given of what users wrote."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]


class ControlTexts:
    """The texts that a model reads as control tokens.

    Args:
        texts: All of them.
        own: Those that the assistant writes itself, such as ``</think>``: they stay what they are
            in its own messages, where templates look for them.
    """

    def __init__(self, texts: Iterable[str] = (), own: Iterable[str] = ()) -> None:
        # What is a single character cannot be cut, and spaces are no markup.
        found = {text for text in texts if len(text) > 1 and not text.isspace()}
        self._all = _Finder(found)
        self._of_others = _Finder(found.difference(own))

    @classmethod
    def of_model(
        cls, template: str, added: Iterable[AddedToken], reasoning: Iterable[str] = ()
    ) -> ControlTexts:
        """Return those of a model: special tokens, and added tokens that its template writes.

        Args:
            template: Its source.
            added: The added tokens of the vocabulary.
            reasoning: Texts around the reasoning of an answer.
        """
        added = list(added)
        ordinary = {token.text for token in added if not token.special and token.text in template}
        special = {token.text for token in added if token.special}
        return cls(special | ordinary, own=ordinary.union(reasoning))

    def rendered(self, values: Values, render: Callable[[Values], str]) -> list[str]:
        """Render values; returns the text, cut wherever a user's text would be a control token."""
        texts = list(_texts_of_users(values))
        has_words = any(text.strip() in self._all.words for text in texts)
        if not has_words and not any(map(self._all.may_control, texts)):
            return [render(values)]
        every = "\0".join(texts)
        mark = next((each for each in _MARKS if not _holds(every, each)), "")
        if not mark:  # somebody wrote all of them
            mark = _MARKS[0]
            values = Values(*_without(mark, values))
        pieces = self._cut(render(self._marked(values, mark)), mark)
        if not has_words:
            return pieces
        # A template may put brackets around a word. It may also compare it with others, which a
        # mark would keep it from, so that this is only tried.
        tried = self._cut(render(self._marked(values, mark, with_words=True)), mark)
        return tried if "".join(tried) == "".join(pieces) else pieces

    def _marked(self, values: Values, mark: str, *, with_words: bool = False) -> Values:
        find, find_own = self._all.marked, self._of_others.marked

        def marked(message: Mapping[str, Any]) -> Mapping[str, Any]:
            own = _OWN_FIELDS if message.get("role") == "assistant" else ()
            return {
                key: (find_own if key in own else find)(value, mark, with_words=with_words)
                for key, value in message.items()
                if key != "role"
            } | {"role": message.get("role")}

        return Values(
            messages=list(map(marked, values.messages)),
            tools=find(values.tools, mark, with_words=with_words),
            variables=find(values.variables, mark, with_words=with_words),
        )

    def _cut(self, text: str, mark: str) -> list[str]:
        """Return a rendered text without marks, cut where one kept a control token apart."""
        parts = re.split(f"{mark}|{re.escape(_escape(mark))}", text)
        clean = "".join(parts)
        places = list(itertools.accumulate(map(len, parts[:-1])))
        cuts = set()
        for start, end in self._all.occurrences(clean):
            first = bisect.bisect_right(places, start)
            if first < len(places) and places[first] < end:
                cuts.add(places[first])
        edges = [0, *sorted(cuts), len(clean)]
        return [clean[a:b] for a, b in itertools.pairwise(edges)]


def encode_pieces(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[int]:
    """Encode a rendered text, each piece of it by itself; nothing is put around it.

    The template wrote the control tokens that a text needs.
    """
    ids = tokenizer.encode(pieces[0], add_special_tokens=False)
    for piece in pieces[1:]:
        ids += tokenizer.encode_within(piece)
    return ids


class _Finder:
    """Finds some texts, whole or in parts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = tuple(sorted(texts))
        self._longest = max(map(len, self._texts), default=0)
        self._first = frozenset(text[0] for text in self._texts)
        self._last = frozenset(text[-1] for text in self._texts)
        self.words = frozenset(word for text in self._texts for word in _WORDS.findall(text))
        """What stands between their brackets."""
        self._by_head: dict[str, dict[int, set[str]]] = {}
        for text in self._texts:
            self._by_head.setdefault(text[:2], {}).setdefault(len(text), set()).add(text)
        heads = "|".join(map(re.escape, self._by_head)) or r"(?!)"
        self._head = re.compile(heads)

    def occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where the texts stand, those that overlap too."""
        start = -1
        while found := self._head.search(text, start + 1):
            start = found.start()
            for length, texts in self._by_head[text[start : start + 2]].items():
                if text[start : start + length] in texts:
                    yield start, start + length

    def may_control(self, text: str) -> bool:
        """Whether a text holds one of them, or a part that others could complete."""
        return any(True for _ in self._places(text))

    def marked(self, value: Any, mark: str, *, with_words: bool = False) -> Any:
        """Return a value whose texts have a mark in what could become a control token."""
        if isinstance(value, str):
            places = set(self._places(value))
            if with_words and value.strip() in self.words:
                places.add(len(value) - len(value.lstrip()))
            edges = [0, *sorted(places), len(value)]
            return mark.join(value[a:b] for a, b in itertools.pairwise(edges))
        again = partial(self.marked, mark=mark, with_words=with_words)
        if isinstance(value, Mapping):
            return {again(key): again(each) for key, each in value.items()}
        return list(map(again, value)) if isinstance(value, (list, tuple)) else value

    def _places(self, text: str) -> Iterator[int]:
        """Yield where marks are due."""
        for start, _ in self.occurrences(text):
            yield start + 1
        if self._texts:
            yield from self._open_ends(text)

    def _open_ends(self, text: str) -> Iterator[int]:
        """Yield the ends of a text at which a part of a control token stands."""
        bare = text.strip()
        start = text.find(bare)
        head, tail = bare[: self._longest], bare[-self._longest :]
        if not self._last.isdisjoint(head) and not self._ends.isdisjoint(
            head[: i + 1] for i, character in enumerate(head) if character in self._last
        ):
            yield start
        if not self._first.isdisjoint(tail) and not self._starts.isdisjoint(
            tail[i:] for i, character in enumerate(tail) if character in self._first
        ):
            yield start + len(bare)
        is_part = 0 < len(bare) < self._longest and not _PROSE.fullmatch(bare)
        if is_part and bare in self._every:
            yield start

    @cached_property
    def _starts(self) -> frozenset[str]:
        return frozenset(text[:size] for text in self._texts for size in range(1, len(text)))

    @cached_property
    def _ends(self) -> frozenset[str]:
        return frozenset(text[size:] for text in self._texts for size in range(1, len(text)))

    @cached_property
    def _every(self) -> str:
        return "\0".join(self._texts)


def _texts_of_users(values: Values) -> Iterator[str]:
    for message in values.messages:
        for name, value in message.items():
            if name != "role":
                yield from _texts_of(value)
    yield from _texts_of(values.tools)
    yield from _texts_of(values.variables)


def _texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts_of(key)
            yield from _texts_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts_of(each)


def _without(mark: str, value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(mark, "").replace(_escape(mark), "")
    if isinstance(value, Mapping):
        return {_without(mark, key): _without(mark, each) for key, each in value.items()}
    return [_without(mark, each) for each in value] if isinstance(value, (list, tuple)) else value


def _escape(mark: str) -> str:
    """As JSON has it where it is held to ASCII."""
    return f"\\u{ord(mark):04x}"


def _holds(text: str, mark: str) -> bool:
    return mark in text or _escape(mark) in text
