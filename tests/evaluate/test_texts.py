"""Texts become windows that begin as the model's files ask, and hold every token once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.errors import UsageError
from zse.evaluate.texts import SAMPLE, read_texts, windows_of

if TYPE_CHECKING:
    from pathlib import Path


class Letters:
    """A token a letter; two tokens in front and one behind where they are asked for."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        inner = [ord(letter) for letter in text]
        return [1, 2, *inner, 3] if add_special_tokens else inner


def cut(text: str, **settings: int) -> list[list[int]]:
    return [window.token_ids for window in windows_of(Letters(), [text], **settings)]


def test_windows_hold_every_token_once_behind_the_tokens_in_front() -> None:
    assert cut("abcdefg", context=5) == [[1, 2, *map(ord, one)] for one in ("abc", "def", "g")]


def test_what_stands_in_front_is_counted_as_given() -> None:
    assert {window.num_given for window in windows_of(Letters(), ["abc", "d"], context=4)} == {2}


def test_no_more_of_a_text_is_read_than_was_asked_for() -> None:
    assert cut("abcdefg", context=8, num_tokens=2) == [[1, 2, ord("a"), ord("b")]]


def test_a_window_too_small_to_foretell_anything_is_refused() -> None:
    with pytest.raises(UsageError, match="says nothing"):
        cut("abc", context=3)


def test_without_files_the_sample_is_read() -> None:
    assert read_texts([]) == [path.read_text() for path in sorted(SAMPLE.glob("*.txt"))]
    assert len(read_texts([])) == 2


@pytest.mark.parametrize(
    ("content", "words"), [(b"\xff\xfe\x00", "no text in UTF-8"), (b" \n", "empty"), (None, "read")]
)
def test_a_file_that_is_no_text_is_refused_by_name(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "some.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"some.txt.*{words}"):
        read_texts([path])
