from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from pathlib import Path

from zse.store.locks import hold, is_used, locked, locked_if_free, open_locked, remove_unused


def test_a_file_that_is_held_open_or_mapped_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 5000)
    descriptor = hold(path)
    assert descriptor is not None
    assert not remove_unused(path)
    os.close(descriptor)
    with path.open("rb") as file:
        assert is_used(path)
        assert not remove_unused(path)
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert not remove_unused(path)
    mapped.close()
    assert not is_used(path)
    assert remove_unused(path)
    assert hold(path) is None


def times_open(path: Path) -> int:
    """Count the descriptors of this process that are of the file at a path."""
    file = path.stat()
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of the listing is closed by now
            found += os.path.samestat(descriptor.stat(), file)
    return found


def test_who_waits_for_a_lock_gets_the_file_that_is_there_then(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    entered = threading.Event()

    def wait() -> None:
        with locked(path):
            entered.set()

    first, second = open_locked(path), open_locked(tmp_path / "other")
    thread = threading.Thread(target=wait)
    thread.start()
    while times_open(path) < 2:
        time.sleep(0.001)
    (tmp_path / "other").rename(path)
    os.close(first)
    assert not entered.wait(0.1)
    os.close(second)
    thread.join(timeout=30)
    assert entered.is_set()


def test_a_lock_that_somebody_holds_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path), locked_if_free(path) as is_free:
        assert not is_free
    with locked_if_free(path) as is_free:
        assert is_free
    assert not path.exists()
