"""What a model reads to be calibrated: a text, conversations, or a sample that zse brings.

A model's weights are many and a text's tokens few, so a long text is read in places: the same
places every time.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from zse.errors import TemplateError, UsageError
from zse.records import record
from zse.text.files import read_text
from zse.text.template import chat_template_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.text.tokenizer import Tokenizer

SAMPLE = "sample"
"""Name of the text that zse brings."""
SEQUENCE_TOKENS = 512
MOST_TOKENS = 10 * SEQUENCE_TOKENS
_SAMPLE_FOLDER = Path(__file__).parent / "sample"
_PIECE_CHARACTERS = 4 * SEQUENCE_TOKENS
_MOST_PIECES = 1024
_MOST_LINE_CHARACTERS = 1 << 20
_Item = TypeVar("_Item")


@record
class CalibrationText:
    """What is read."""

    name: str
    """Of the file, without its folder."""
    sha256: str
    pieces: tuple[str, ...] = ()
    """Plain texts, each read on its own."""
    conversations: tuple[Sequence[dict[str, Any]], ...] = ()
    """Messages of each, in the form that chat templates take."""

    def to_json(self) -> dict[str, str]:
        """Return what tells the text from others, for a file's provenance."""
        return {"text": self.name, "sha256": self.sha256}


def read_calibration(name: str | Path) -> CalibrationText:
    """Read a calibration file: JSON lines where it is called ``.jsonl``, else plain text.

    A line of JSON is an object with ``messages`` or with ``text``, or a list of messages.

    Args:
        name: A path, or ``sample``.

    Raises:
        UsageError: The file is absent, no text in UTF-8, empty, too long, or a line of it is not
            as it should be.
    """
    if str(name) == SAMPLE:
        texts = [read_text(path) for path in sorted(_SAMPLE_FOLDER.glob("*.txt"))]
        pieces = [piece for text in texts for piece in _cut(text)]
        return CalibrationText(
            name=SAMPLE, sha256=_digest("".join(texts)), pieces=tuple(_spread(pieces))
        )
    path = Path(name).expanduser()
    text = read_text(path)
    if path.suffix != ".jsonl":
        pieces = _spread(_cut(text))
        return CalibrationText(name=path.name, sha256=_digest(text), pieces=tuple(pieces))
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    read = [_read_line(f"line {number} of {path}", line) for number, line in _spread(lines)]
    return CalibrationText(
        name=path.name,
        sha256=_digest(text),
        pieces=tuple(one[:_PIECE_CHARACTERS] for one in read if isinstance(one, str)),
        conversations=tuple(one for one in read if not isinstance(one, str)),
    )


def sequences_of(
    text: CalibrationText,
    tokenizer: Tokenizer,
    get_section: Callable[[str], bytes | None],
    *,
    longest: int = SEQUENCE_TOKENS,
) -> list[list[int]]:
    """Return sequences of tokens, as many as are read.

    Args:
        text: What is read.
        tokenizer: The model's.
        get_section: Returns what the model's file has by name, or None: for its chat template.
        longest: Most tokens of a sequence.

    Raises:
        UsageError: There are fewer than two tokens, or conversations and no template for them.
    """
    pieces = [tokenizer.encode(piece) for piece in text.pieces]
    if text.conversations:
        try:
            template = chat_template_of(get_section)
            rendered = [
                template.render(messages, add_generation_prompt=False)
                for messages in text.conversations
            ]
        except TemplateError as error:
            raise UsageError(
                f"the conversations of {text.name} cannot be read: {error.message}",
                hint="Calibrate with plain text, or with JSON lines that have a text.",
            ) from error
        # A template writes the tokens that begin a text.
        pieces += [tokenizer.encode(one, add_special_tokens=False) for one in rendered]
    found: list[list[int]] = []
    for ids in pieces:
        room = MOST_TOKENS - sum(map(len, found))
        if len(ids) > 1 and room > 1:
            found.append(ids[: min(longest, room)])
    if not found:
        raise UsageError(f"{text.name} has fewer than two tokens: nothing can be learned from it")
    return found


def _cut(text: str) -> list[str]:
    starts = range(0, len(text), _PIECE_CHARACTERS)
    return [text[start : start + _PIECE_CHARACTERS] for start in starts]


def _spread(items: Sequence[_Item]) -> list[_Item]:
    """Return some items, the first so many of which are from all over, however many those are."""
    count = min(len(items), _MOST_PIECES)
    chosen = [items[index * len(items) // count] for index in range(count)]
    width = count.bit_length()
    order = sorted(range(count), key=lambda index: f"{index:0{width}b}"[::-1])
    return [chosen[index] for index in order]


def _read_line(where: str, line: str) -> str | list[dict[str, Any]]:
    """Return the text of a line of JSON, or its messages."""
    if len(line) > _MOST_LINE_CHARACTERS:
        raise UsageError(
            f"{where} has {len(line):,} characters, more than the {_MOST_LINE_CHARACTERS:,} "
            "that are read"
        )
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON: {error}") from error
    found = value
    if isinstance(value, dict):
        found = value.get("messages", value.get("text"))
        if isinstance(found, str) and found:
            return found
    if isinstance(found, list) and found and all(map(_is_message, found)):
        return found
    raise UsageError(
        f"{where} has neither messages nor a text",
        hint='Each line is {"messages": [{"role": "user", "content": "..."}]}, or {"text": "..."}.',
    )


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
