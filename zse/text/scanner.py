"""An answer's text, read by a script as far as it has come.

Each format of calls or of reasoning is a generator that reads from front to back and yields where
it needs more text. It never reads anything twice and decides only what no later text can change, so
an answer takes linear time, and the same comes out of it wherever it was cut into deltas.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from zse.text.pieces import Arguments, CallOpening, Piece, Said, Thought

if TYPE_CHECKING:
    from collections.abc import Sequence

Result = TypeVar("Result")
Reading: TypeAlias = Generator[None, None, Result]
"""A part of a script: it yields where it waits for text, and returns what it has read."""


class _Spaced:
    """Text whose spaces are handed out only when it is known that they count."""

    def __init__(self, sink: Callable[[str], None]) -> None:
        self._sink = sink
        self._spaces: list[str] = []
        self._has_text = False
        self._is_bare = True
        """Spaces before and after it count too."""

    def add(self, text: str) -> None:
        body = text.rstrip()
        if not body:
            self._spaces.append(text)
            return
        if self._has_text or self._is_bare:
            self._sink("".join(self._spaces))
            self._sink(body)
        else:
            self._sink(body.lstrip())
        self._spaces = [text[len(body) :]]
        self._has_text = True

    def drop_leading(self) -> None:
        self._is_bare = False

    def drop_spaces(self) -> None:
        """Something else follows the text."""
        self._is_bare = False
        self._spaces.clear()

    def finish(self) -> None:
        if self._is_bare:
            self._sink("".join(self._spaces))
        self._spaces.clear()


class Scanner:
    """What has come and is not read yet, and the pieces that were made of what has been read."""

    def __init__(self, hidden: Sequence[str] = ()) -> None:
        self._hidden = hidden
        self._text = ""
        self._at = 0
        self._is_over = False
        self._kept: list[str] | None = None
        self._pieces: list[Piece] = []
        self._said = _Spaced(lambda text: self._pieces.append(Said(text)))
        self._thought = _Spaced(lambda text: self._pieces.append(Thought(text)))
        self._thought.drop_leading()
        self.is_thinking = False
        """What is being read is reasoning."""

    # --- for whoever has the text ---------------------------------------------------------------

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Say that no more text comes."""
        self._is_over = True

    def take(self) -> list[Piece]:
        """Return the pieces made since the last time, as few as can be."""
        pieces: list[Piece] = []
        for kind, group in itertools.groupby(self._pieces, type):
            if kind is CallOpening:
                pieces.extend(group)
            else:
                text = "".join(piece[0] for piece in group)
                pieces += [kind(text)] if text else []
        self._pieces.clear()
        return pieces

    # --- reading --------------------------------------------------------------------------------

    def wait(self) -> Reading[bool]:
        """Wait for text that is not read yet; False when the answer is over."""
        while self._at == len(self._text):
            if self._is_over:
                return False
            yield
        return True

    def peek(self) -> Reading[str]:
        """Return the next character without reading it; empty at the end."""
        yield from self.wait()
        return self._text[self._at : self._at + 1]

    def next(self) -> Reading[str]:
        """Read the next character; empty at the end."""
        return self._read_to(self._at + 1) if (yield from self.wait()) else ""

    def skip(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read what a pattern of single characters, ``[...]*``, matches."""
        parts = []
        while (yield from self.wait()):
            found = pattern.match(self._text, self._at)
            if found is None or found.end() == self._at:
                break
            parts.append(self._read_to(found.end()))
        return "".join(parts)

    def skip_space(self) -> Reading[str]:
        return self.skip(_SPACE)

    def match(self, literal: str) -> Reading[bool]:
        """Read a literal if it comes next; else read nothing."""
        while len(rest := self._text[self._at : self._at + len(literal)]) < len(literal):
            if self._is_over or not literal.startswith(rest):
                return False
            yield
        if rest != literal:
            return False
        self._read_to(self._at + len(literal))
        return True

    def until(self, ends: Sequence[str], sink: Callable[[str], None]) -> Reading[str]:
        """Read up to the first of some literals, and it too; hand over the text before it.

        Args:
            ends: None begins within another.
            sink: Gets the text as soon as it cannot be part of an end.

        Returns:
            The literal; empty when the answer ended before one came.
        """
        pattern = _pattern_of(tuple(ends))
        while (yield from self.wait()):
            found = pattern.search(self._text, self._at)
            if found is None:
                stop = len(self._text)
            elif found[0] in ends:
                stop = found.start()
            else:  # the beginning of an end stands at the end of what has come
                stop = len(self._text) if self._is_over else found.start()
            if stop > self._at:
                sink(self._read_to(stop))
            if found is not None and found[0] in ends:
                self._read_to(found.end())
                return found[0]
            if self._at < len(self._text):
                yield
        return ""

    # --- what is read may be no call ------------------------------------------------------------

    def keep(self, text: str = "") -> None:
        """Begin to keep what is read, which ``text`` was already."""
        self._kept = [text]

    def say_kept(self) -> None:
        """What was read since ``keep`` is text, but for markers in it."""
        text = "".join(self._kept or ())
        self._kept = None
        for marker in self._hidden:
            text = text.replace(marker, "")
        self.say(text)

    def drop_kept(self) -> None:
        """What was read since ``keep`` is nothing that anybody should see."""
        self._kept = None

    # --- what comes of it -----------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Hand out text. Spaces wait for what follows: beside calls and thoughts they are none."""
        self._said.add(text)

    def trim_text(self) -> None:
        """Text is beside something else: spaces before the first of it mean nothing."""
        self._said.drop_leading()

    def think(self, text: str) -> None:
        """Hand out reasoning, without the spaces around it."""
        self._said.drop_leading()
        self._thought.add(text)

    def open_call(self, name: str) -> None:
        """A call begins; what was kept is part of it."""
        self._kept = None
        self._said.drop_spaces()
        self._pieces.append(CallOpening(name))

    def add_arguments(self, text: str) -> None:
        self._pieces.append(Arguments(text))

    def finish_text(self) -> None:
        """The answer is over: spaces at its end belong to a text that has nothing beside it."""
        self._said.finish()

    def _read_to(self, end: int) -> str:
        text = self._text[self._at : end]
        self._at = end
        if self._kept is not None:
            self._kept.append(text)
        return text


class ScriptReader:
    """Reads answers by a script. See ``zse.text.pieces.AnswerReader``.

    Args:
        script: Reads until the answer is over.
        hidden: Control tokens in the text that nobody is shown.
    """

    def __init__(
        self, script: Callable[[Scanner], Reading[None]], hidden: Sequence[str] = ()
    ) -> None:
        self._scanner = Scanner(hidden)
        self._reading = script(self._scanner)

    @property
    def is_thinking(self) -> bool:
        return self._scanner.is_thinking

    def push(self, text: str) -> list[Piece]:
        self._scanner.feed(text)
        next(self._reading, None)
        return self._scanner.take()

    def finish(self) -> list[Piece]:
        self._scanner.end()
        for _ in self._reading:
            raise AssertionError("a script waits for text that cannot come")
        self._scanner.finish_text()
        return self._scanner.take()


_SPACE = re.compile(r"\s*")
_PATTERNS: dict[tuple[str, ...], re.Pattern[str]] = {}


def _pattern_of(ends: tuple[str, ...]) -> re.Pattern[str]:
    """Return what finds the first end, or the beginning of one where the text stops."""
    if ends not in _PATTERNS:
        whole = [re.escape(end) for end in ends]
        begun = {re.escape(end[:size]) for end in ends for size in range(1, len(end))}
        begun_at_end = rf"(?:{'|'.join(sorted(begun, key=len, reverse=True)) or '(?!)'})\Z"
        _PATTERNS[ends] = re.compile("|".join([*whole, begun_at_end]))
    return _PATTERNS[ends]
