"""What is there stays, unless it is the same or somebody says that it may go."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest
from faulty_s3 import faulty_s3

from zse.errors import NotFoundError, UsageError
from zse.settings import load_settings
from zse.store import open_store
from zse.store.overwrite import WouldReplaceError, check_output, existing_copy

if TYPE_CHECKING:
    from pathlib import Path

    from faulty_s3 import FaultyS3

__all__ = ["faulty_s3"]
DATA = b"bytes of a model"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    path.write_bytes(DATA)
    return path


def test_a_free_name_is_free_and_a_taken_one_wants_force(tmp_path: Path, file: Path) -> None:
    check_output(tmp_path / "b", load_settings(), force=False)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for taken in (file, tmp_path / "dangling"):
        with pytest.raises(WouldReplaceError, match="exists already"):
            check_output(taken, load_settings(), force=False)
        check_output(taken, load_settings(), force=True)


def test_what_is_no_ordinary_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(UsageError, match="not an ordinary file"):
            check_output(path, load_settings(), force=True)


def test_an_input_is_never_an_output_under_any_of_its_names(tmp_path: Path, file: Path) -> None:
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    for name in ("a", "link", "hard"):
        with pytest.raises(UsageError, match="one of the files that are read"):
            check_output(tmp_path / name, load_settings(), force=True, inputs=[file])


def test_inside_the_input_is_found_through_links(tmp_path: Path, file: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "door").symlink_to(tmp_path / "inside")
    with pytest.raises(WouldReplaceError, match="lies inside the input"):
        check_output(
            tmp_path / "door" / "m.zse", load_settings(), force=False, folder=tmp_path / "inside"
        )
    check_output(
        tmp_path / "door" / "m.zse", load_settings(), force=True, folder=tmp_path / "inside"
    )
    check_output(tmp_path / "b", load_settings(), force=False, folder=tmp_path / "inside")


def test_an_object_is_kept_as_a_file_is(faulty_s3: FaultyS3) -> None:
    faulty_s3.objects["/bucket/a"] = (DATA, {})
    check_output("s3://bucket/b", load_settings(), force=False)
    with pytest.raises(WouldReplaceError, match="s3://bucket/a exists already"):
        check_output("s3://bucket/a", load_settings(), force=False)
    check_output("s3://bucket/a", load_settings(), force=True)


@pytest.mark.parametrize("recorded", [True, False])
def test_an_object_of_the_same_bytes_needs_no_copy(
    faulty_s3: FaultyS3, file: Path, tmp_path: Path, recorded: bool
) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    metadata = {"x-amz-meta-zse-sha256": digest} if recorded else {}
    faulty_s3.objects["/bucket/a"] = (DATA, metadata)
    faulty_s3.etags["/bucket/a"] = hashlib.md5(DATA).hexdigest()
    for source, target in ((file, "s3://bucket/a"), ("s3://bucket/a", file)):
        found = existing_copy(
            open_store(source, load_settings()), open_store(target, load_settings()), force=False
        )
        assert found is not None
        assert (found.sha256, found.resumed_bytes) == (digest, len(DATA))
    file.write_bytes(DATA[::-1])
    for source, target in ((file, "s3://bucket/a"), ("s3://bucket/a", file)):
        with pytest.raises(WouldReplaceError, match="exists already and is not"):
            existing_copy(
                open_store(source, load_settings()),
                open_store(target, load_settings()),
                force=False,
            )
        assert (
            existing_copy(
                open_store(source, load_settings()), open_store(target, load_settings()), force=True
            )
            is None
        )


def test_a_digest_that_is_given_decides_where_the_store_knows_none(
    faulty_s3: FaultyS3, file: Path
) -> None:
    faulty_s3.objects["/bucket/a"] = (DATA, {})
    faulty_s3.etags["/bucket/a"] = '"opaque"'
    source, target = open_store("s3://bucket/a", load_settings()), open_store(file, load_settings())
    with pytest.raises(WouldReplaceError):
        existing_copy(source, target, force=False)
    digest = hashlib.sha256(DATA).hexdigest()
    assert existing_copy(source, target, force=False, sha256=digest) is not None


def test_two_files_are_compared_byte_for_byte(tmp_path: Path, file: Path) -> None:
    (tmp_path / "b").write_bytes(DATA)
    assert (
        existing_copy(
            open_store(file, load_settings()),
            open_store(tmp_path / "b", load_settings()),
            force=False,
        )
        is not None
    )
    (tmp_path / "b").write_bytes(DATA[::-1])
    with pytest.raises(WouldReplaceError):
        existing_copy(
            open_store(file, load_settings()),
            open_store(tmp_path / "b", load_settings()),
            force=False,
        )
    with pytest.raises(NotFoundError):
        existing_copy(
            open_store(tmp_path / "absent", load_settings()),
            open_store(file, load_settings()),
            force=True,
        )
