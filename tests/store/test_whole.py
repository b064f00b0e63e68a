from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.store.whole import write_whole

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_there_whole_with_its_folder_and_its_mode(tmp_path: Path) -> None:
    write_whole(tmp_path / "folder" / "a.sh", "größe", mode=0o755)
    assert (tmp_path / "folder" / "a.sh").read_bytes() == "größe".encode()
    assert (tmp_path / "folder" / "a.sh").stat().st_mode & 0o777 == 0o755


def test_what_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "a", b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
