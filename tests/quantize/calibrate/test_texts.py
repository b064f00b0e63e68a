"""Calibration files: what is read of them, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from zse.errors import UsageError
from zse.evaluate import texts as evaluated
from zse.quantize.calibrate import texts
from zse.quantize.calibrate.texts import read_calibration, sequences_of
from zse.text import files

if TYPE_CHECKING:
    from pathlib import Path


class Letters:
    """A token a letter, behind one that begins every text."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*([1] if add_special_tokens else []), *map(ord, text)]


def lines(folder: Path, *values: object) -> Path:
    path = folder / "talk.jsonl"
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def test_a_short_text_is_read_whole_in_sequences_of_bounded_length(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * 5000)
    found = sequences_of(read_calibration(path), Letters(), {}.get)
    assert [len(ids) for ids in found] == [512, 512, 512]
    assert all(ids[0] == 1 for ids in found)


def test_a_long_text_is_read_in_places_from_all_over(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(chr(ord("a") + place) * 65536 for place in range(26)))
    found = sequences_of(read_calibration(path), Letters(), {}.get)
    assert sum(map(len, found)) == texts.MOST_TOKENS
    assert len({ids[-1] for ids in found}) == len(found)
    assert found == sequences_of(read_calibration(path), Letters(), {}.get)


def test_conversations_are_written_as_the_model_is_used_to(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Hi"}]
    path = lines(tmp_path, {"messages": said}, {"text": "plain"}, said)
    template = b"{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    found = sequences_of(read_calibration(path), Letters(), {"chat_template.jinja": template}.get)
    talk = [*map(ord, "<user>Hi")]
    assert sorted(found) == sorted([[1, *map(ord, "plain")], talk, talk])


def test_conversations_need_a_template(tmp_path: Path) -> None:
    path = lines(tmp_path, {"messages": [{"role": "user", "content": "Hi"}]})
    with pytest.raises(UsageError, match=r"talk\.jsonl cannot be read"):
        sequences_of(read_calibration(path), Letters(), {}.get)


def test_the_sample_is_no_text_that_models_are_measured_on() -> None:
    pieces = read_calibration("sample").pieces
    assert sum(map(len, pieces)) > 10_000
    measured = "".join(evaluated.read_texts([]))
    assert not any(line in measured for piece in pieces for line in piece.split("\n") if line[20:])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x7fELF\x02\x01\xff\xfe", "no text in UTF-8: byte 6"),
        (b"GGUF\x03\x00\x00\x00 and so on", "no text: byte 5 is zero"),
        (b"", "empty"),
        (b" \n\n", "empty"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_calibration(path)


def test_a_folder_and_what_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file"):
        read_calibration(tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        read_calibration(tmp_path / "absent")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(10 << 40)
    with pytest.raises(UsageError, match="more than the 67,108,864 bytes"):
        read_calibration(path)


def test_one_endless_line_of_text_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("word " * (files.MOST_BYTES // 5))
    assert len(read_calibration(path).pieces) == 1024


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 of .* is no JSON"),
        ("[" * 100_000, "line 2 of .* is no JSON"),
        ('{"messages": []}', "neither messages nor a text"),
        ('{"messages": [{"content": "no role"}]}', "neither messages nor a text"),
        ('"a word"', "neither messages nor a text"),
        ("7", "neither messages nor a text"),
        ("x" * ((1 << 20) + 1), "1,048,577 characters"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(UsageError, match=words):
        read_calibration(path)


def test_a_text_of_one_token_teaches_nothing(tmp_path: Path) -> None:
    class Deaf(Letters):
        def encode(self, _text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [1] if add_special_tokens else []

    path = tmp_path / "a.txt"
    path.write_text("word")
    with pytest.raises(UsageError, match="fewer than two tokens"):
        sequences_of(read_calibration(path), Deaf(), {}.get)
