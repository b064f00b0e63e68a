from __future__ import annotations

import io
import os
import tarfile

import pytest
from broken_rules import breaks

from zse.errors import ImageError
from zse.oci.errors import ImageRule
from zse.oci.layout.tar import (
    check_member_path,
    directory,
    file_of_bytes,
    file_of_path,
    symlink,
    write_tar,
)


def tar_of(entries, **options) -> bytes:
    sink = io.BytesIO()
    write_tar(entries, sink, **options)
    return sink.getvalue()


def headers(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getmembers()


def test_order_of_entries_does_not_change_the_bytes():
    a, b = file_of_bytes("a/x", b"1"), symlink("b", "a/x")
    assert tar_of([a, b]) == tar_of([b, a])


def test_umask_and_mode_of_the_source_do_not_change_the_bytes(tmp_path):
    results = []
    for umask in (0o022, 0o077):
        before = os.umask(umask)
        try:
            path = tmp_path / f"file-{umask}"
            path.write_bytes(b"data")
            results.append(tar_of([file_of_path("x", path)]))
        finally:
            os.umask(before)
    assert results[0] == results[1]


def test_parents_are_listed_before_their_content():
    names = [member.name for member in headers(tar_of([file_of_bytes("a/b/c", b"")]))]
    assert names == ["a", "a/b", "a/b/c"]


def test_owner_and_time_are_fixed():
    for member in headers(tar_of([file_of_bytes("a/x", b"1", mode=0o755)], mtime=7)):
        assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (
            0,
            0,
            "",
            "",
            7,
        )


def test_content_starts_at_a_page_when_aligned():
    data = tar_of(
        [
            directory("models"),
            file_of_bytes("models/a", b"A" * 10),
            file_of_bytes("models/b", b"B"),
        ],
        align_bytes=4096,
    )
    files = [member for member in headers(data) if member.isfile()]
    assert [member.offset_data % 4096 for member in files] == [0, 0]
    assert data[files[0].offset_data : files[0].offset_data + 10] == b"A" * 10


@pytest.mark.parametrize("number_of_links", range(9))
def test_alignment_holds_at_every_block_offset(number_of_links):
    links = [symlink(f"link{index}", "x") for index in range(number_of_links)]
    data = tar_of([*links, file_of_bytes("z", b"Z")], align_bytes=4096)
    assert headers(data)[-1].offset_data % 4096 == 0


def test_long_and_foreign_names_survive():
    path = "d" * 120 + "/" + "ü" * 90
    assert headers(tar_of([file_of_bytes(path, b"1")]))[-1].name == path


def test_two_files_of_one_path_are_refused():
    with breaks(ImageRule.UNSAFE_ARCHIVE, match="'a'"):
        tar_of([file_of_bytes("a", b"1"), file_of_bytes("a", b"2")])


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a\0b", "a\\b", "."])
def test_paths_that_leave_the_folder_are_refused(path):
    with breaks(ImageRule.UNSAFE_ARCHIVE):
        check_member_path(path, archive="test")


def test_file_that_becomes_shorter_is_an_error_with_words(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(bytes(100))
    entry = file_of_path("models/model.zse", path)
    path.write_bytes(bytes(99))
    with pytest.raises(ImageError, match=r"models/model\.zse became shorter"):
        write_tar([entry], io.BytesIO())
