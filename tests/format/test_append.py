"""Adding a section to a finished file, in place."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
from pathlib import Path

import pytest
from broken_rules import breaks

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))

import small_file

from zse.errors import DiskFullError, NotFoundError, UsageError
from zse.format import append
from zse.format.append import append_section, remove_section
from zse.format.errors import Misuse, Rule
from zse.format.reader import ZSEReader
from zse.format.writer import ZSEWriter

DATA = bytes(range(256)) * 40
NAME = "kernels/sm_90"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.zse"
    small_file.write(path)
    return path


def read(path: Path, name: str) -> bytes:
    with ZSEReader(path) as reader:
        reader.verify()
        return bytes(reader.section(name))


def test_an_added_section_is_read_back_and_nothing_else_moved(path: Path) -> None:
    with ZSEReader(path) as reader:
        before = reader.header
        size_bytes = reader.size_bytes
    section = append_section(path, NAME, DATA)
    assert section.offset_bytes >= size_bytes - 4096
    assert read(path, NAME) == DATA
    with ZSEReader(path) as reader:
        assert reader.header.groups == before.groups
        assert reader.header.tensors == before.tensors
        assert reader.header.sections == (*before.sections, section)
        assert reader.size_bytes == section.end_bytes


def test_several_sections_can_follow_and_each_can_be_replaced(path: Path) -> None:
    append_section(path, NAME, DATA)
    append_section(path, "kernels/sm_80", DATA[:100])
    append_section(path, NAME, DATA[1:])
    append_section(path, NAME, DATA[:7])
    assert read(path, NAME) == DATA[:7]
    assert read(path, "kernels/sm_80") == DATA[:100]


def test_the_same_bytes_again_change_nothing(path: Path) -> None:
    first = append_section(path, NAME, DATA)
    content = path.read_bytes()
    assert append_section(path, NAME, DATA) == first
    assert path.read_bytes() == content


def test_a_header_without_room_is_an_error_and_the_file_stays(path: Path) -> None:
    states = []

    def add_for_ever() -> None:
        while True:
            states.append(path.read_bytes())
            append_section(path, f"kernels/{len(states)}{'x' * 100}", b"a")

    with breaks(Rule.HEADER_TOO_LARGE, match="are kept for it"):
        add_for_ever()
    assert len(states) > 6  # one pack for each architecture fits
    assert path.read_bytes() == states[-1]


def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = path.read_bytes()
    pwrite = os.pwrite

    def fill(fd: int, data: memoryview, offset_bytes: int) -> int:
        if offset_bytes > len(content):
            raise OSError(errno.ENOSPC, "no space")
        return pwrite(fd, data[:1000], offset_bytes)

    monkeypatch.setattr(append.os, "pwrite", fill)
    with pytest.raises(DiskFullError):
        append_section(path, NAME, DATA)
    assert path.read_bytes() == content


def test_a_write_in_small_pieces_arrives_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(append.os, "pwrite", lambda fd, data, at: pwrite(fd, data[:999], at))
    append_section(path, NAME, DATA)
    assert read(path, NAME) == DATA


def test_another_writer_is_waited_for_by_nobody(path: Path) -> None:
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with breaks(Misuse.WRITER_BUSY):
            append_section(path, NAME, DATA)


def test_bad_names_and_bad_files_are_refused(path: Path, tmp_path: Path) -> None:
    with breaks(Rule.UNSAFE_SECTION_NAME):
        append_section(path, "../up", DATA)
    with pytest.raises(NotFoundError):
        append_section(tmp_path / "none.zse", NAME, DATA)
    with pytest.raises((NotFoundError, UsageError)):
        append_section(tmp_path, NAME, DATA)
    (tmp_path / "other").write_bytes(b"not a zse file at all")
    with breaks(Rule.BAD_MAGIC):
        append_section(tmp_path / "other", NAME, DATA)


def test_a_section_at_the_end_is_taken_away_without_a_trace(path: Path) -> None:
    before = path.read_bytes()
    append_section(path, NAME, DATA)
    assert remove_section(path, NAME).length_bytes == len(DATA)
    assert path.read_bytes() == before
    with pytest.raises(NotFoundError):
        remove_section(path, NAME)


def test_a_section_before_others_becomes_zeros(path: Path) -> None:
    append_section(path, NAME, DATA)
    append_section(path, "kernels/sm_80", DATA[:100])
    remove_section(path, NAME)
    assert read(path, "kernels/sm_80") == DATA[:100]
    assert DATA not in path.read_bytes()


def test_the_only_section_of_a_file_without_tensors_can_be_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "empty.zse"
    with ZSEWriter(path, architecture="llama", model_config={}, provenance={}) as writer:
        writer.add_section(NAME, DATA)
        writer.plan([])
    remove_section(path, NAME)
    with ZSEReader(path) as reader:
        reader.verify()
        assert reader.header.sections == ()
    assert DATA not in path.read_bytes()


def test_a_kill_between_the_bytes_and_the_header_is_undone_as_the_error_says(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(append, "_write_header", killed)
        with pytest.raises(KeyboardInterrupt):
            append_section(path, NAME, DATA)
    with breaks(Rule.TRAILING_BYTES) as broken:
        ZSEReader(path)
    advice = re.search(r"truncate -s (\d+) FILE", broken.value.hint)
    assert advice is not None
    os.truncate(path, int(advice[1]))
    assert path.read_bytes() == before
    append_section(path, NAME, DATA)
    assert read(path, NAME) == DATA
