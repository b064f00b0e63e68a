"""Locks between processes. The kernel drops them when a process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def open_locked(path: Path, *, mode: int = 0o644, is_shared: bool = False) -> int:
    """Open a file, made if need be, and wait for its lock; closing it gives it up.

    The file may be renamed or removed by whoever held the lock before, and its folder too: then
    it is opened anew.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        except FileNotFoundError:
            if path.is_symlink():  # to nowhere: it will not get better
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
            if is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextlib.contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold a shared lock of a file that exists for nothing else; the last who does removes it."""
    descriptor = open_locked(path, is_shared=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                path.unlink()  # those who wait for it open it anew
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a file that exists for nothing else."""
    descriptor = open_locked(path)
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold a lock file's exclusive lock if nobody else does, and remove the file at the end."""
    with _opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        if not _lock(descriptor) or not is_at(descriptor, path):
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)  # those who wait for it open it anew


def is_locked(path: Path) -> bool:
    """Whether somebody holds a lock of a file that exists for nothing else."""
    try:
        with _opened(path, os.O_RDONLY) as descriptor:
            return not _lock(descriptor)
    except OSError:
        return False


def hold(path: Path) -> int | None:
    """Return a descriptor that keeps a file in use until it is closed; None if it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    if is_at(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that a path leads to now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def remove_unused(path: Path) -> bool:
    """Remove a file unless somebody holds it, has it open or has it mapped; tell whether it went.

    Raises:
        OSError: The file cannot be opened or removed.
    """
    with _opened(path, os.O_RDWR) as descriptor:
        if _is_used(descriptor):
            return False
        path.unlink()
        return True


def is_used(path: Path) -> bool:
    """Whether somebody holds a file, has it open or has it mapped."""
    with _opened(path, os.O_RDWR) as descriptor:
        return _is_used(descriptor)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the exclusive lock unless somebody else holds one; tell whether it was taken."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_used(descriptor: int) -> bool:
    """Take the exclusive lock, and ask for a lease: the kernel grants it to the only opener."""
    if not _lock(descriptor):
        return True
    try:
        # Who opens the file before the lease is given back sends us a signal: one nobody minds.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without leases, or another user's file: the lock decides
    return False
