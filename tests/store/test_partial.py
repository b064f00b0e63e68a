"""Downloads that stopped and go on."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from zse.errors import StoreError
from zse.settings import load_settings
from zse.store import base, fetch, remote
from zse.store.s3_upload import SHA256_KEY

if TYPE_CHECKING:
    from pathlib import Path

    from faulty_s3 import FaultyS3, Handler

URL, PATH = "s3://bucket/a", "/bucket/a"
CHUNK = 1000
DATA = bytes(range(256)) * 40


@pytest.fixture
def stored(faulty_s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> FaultyS3:
    """The server, holding one object that is read in small chunks by one thread."""
    monkeypatch.setattr(remote, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(remote, "READERS", 1)
    put(faulty_s3, DATA)
    return faulty_s3


def put(server: FaultyS3, data: bytes) -> None:
    server.objects[PATH] = (data, {f"x-amz-meta-{SHA256_KEY}": hashlib.sha256(data).hexdigest()})


def stop_after(count: int) -> base.Progress:
    def progress(done_bytes: int, _total: int) -> None:
        if done_bytes >= count:
            raise KeyboardInterrupt

    return progress


def stop_at(server: FaultyS3, target: Path, count: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch(URL, target, load_settings(), progress=stop_after(count), resume=True)
    server.requests.clear()


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".part")]


def test_a_download_goes_on_where_it_stopped(stored: FaultyS3, tmp_path: Path) -> None:
    stop_at(stored, tmp_path / "a", 3000)
    assert not (tmp_path / "a").exists()
    transfer = fetch(URL, tmp_path / "a", load_settings(), resume=True)
    assert transfer.resumed_bytes == 3000
    assert transfer.verified
    assert (tmp_path / "a").read_bytes() == DATA
    assert hidden(tmp_path) == []
    starts = {int(line.split("bytes=")[1].split("-")[0]) for line in stored.seen("^GET")}
    assert min(starts) == 3000


def test_what_is_left_of_another_version_is_dropped(stored: FaultyS3, tmp_path: Path) -> None:
    stop_at(stored, tmp_path / "a", 3000)
    put(stored, DATA[::-1])
    transfer = fetch(URL, tmp_path / "a", load_settings(), resume=True)
    assert transfer.resumed_bytes == 0
    assert (tmp_path / "a").read_bytes() == DATA[::-1]
    assert hidden(tmp_path) == []


def test_what_is_left_but_damaged_is_found_and_not_kept(stored: FaultyS3, tmp_path: Path) -> None:
    stop_at(stored, tmp_path / "a", 3000)
    part = tmp_path / hidden(tmp_path)[0]
    part.write_bytes(b"\0" * 3000)
    with pytest.raises(StoreError, match="does not hold what was stored"):
        fetch(URL, tmp_path / "a", load_settings(), resume=True)
    assert list(tmp_path.iterdir()) == []
    assert fetch(URL, tmp_path / "a", load_settings(), resume=True).resumed_bytes == 0


def test_more_than_the_object_has_is_not_taken_up(stored: FaultyS3, tmp_path: Path) -> None:
    stop_at(stored, tmp_path / "a", 3000)
    part = tmp_path / hidden(tmp_path)[0]
    part.write_bytes(b"\0" * (len(DATA) + 1))
    assert fetch(URL, tmp_path / "a", load_settings(), resume=True).resumed_bytes == 0
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_failure_keeps_what_came_only_when_asked_to(stored: FaultyS3, tmp_path: Path) -> None:
    def fault(request: Handler) -> bool:
        return "bytes=4000-" in request.headers.get("Range", "") and request.refuse(403, "No")

    stored.fault = fault
    for resume in (False, True):
        with pytest.raises(StoreError):
            fetch(URL, tmp_path / "a", load_settings(), resume=resume)
        assert len(hidden(tmp_path)) == resume
