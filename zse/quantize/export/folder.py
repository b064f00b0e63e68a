"""The folder of a checkpoint while it is written: ``<out>.partial``, which becomes ``<out>``.

A shard gets its name when it is whole, so what a killed run left is what a resumed one need not do
again, as long as both would write the same: a journal says of what.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import NotFoundError, UsageError
from zse.format.partial import lock_alone
from zse.store.overwrite import WouldReplaceError

if TYPE_CHECKING:
    from collections.abc import Iterable

_JOURNAL = "zse-export.json"


def check_folder(out: Path, names: Iterable[str], *, force: bool) -> None:
    """Refuse an output that would replace something.

    Args:
        out: The folder that is to be made.
        names: What it may have, of files and folders.
        force: An older checkpoint that is there may be replaced: a folder of such names alone.

    Raises:
        WouldReplaceError: Something is there.
        UsageError: It is no checkpoint.
        NotFoundError: The folder that it is to lie in does not exist.
    """
    if not out.parent.is_dir():
        raise NotFoundError(
            f"the folder {out.parent} does not exist", hint="Create it, or fix the path."
        )
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise WouldReplaceError(f"{out} exists already")
    if out.is_symlink() or not out.is_dir():
        raise UsageError(f"{out} is not a folder", hint="Name a folder that is to be made.")
    known = set(names)
    others = sorted(path.name for path in out.iterdir() if not _belongs(path, known))
    if others:
        raise UsageError(
            f"{out} holds {others[0]}, which is no part of a checkpoint",
            hint="Name another folder; one that has other things is never replaced.",
        )


def _belongs(path: Path, names: set[str]) -> bool:
    is_weights = path.name.endswith((".safetensors", ".safetensors.index.json"))
    return path.name in names or is_weights


class PartialFolder:
    """The folder that is being written. Use as a context manager; ``publish`` names it.

    Args:
        out: What it becomes.
        plan: What is written, as a digest.
        keep: Whether what is whole stays when the work fails, and is used when it was there.

    Raises:
        UsageError: Another process writes it.
    """

    def __init__(self, out: Path, plan: str, *, keep: bool) -> None:
        self._out, self._keep = out, keep
        self.path = out.with_name(out.name + ".partial")
        is_ours = not self.path.exists() or (self.path / _JOURNAL).is_file()
        if not is_ours and any(self.path.iterdir()):
            raise UsageError(
                f"{self.path} exists and is not what an export left",
                hint="Move it away, or name another folder.",
            )
        self.path.mkdir(exist_ok=True)
        self._lock = os.open(self.path / _JOURNAL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            lock_alone(self._lock, out)
            self._begin(plan)
        except BaseException:
            os.close(self._lock)
            raise

    def finished(self) -> set[str]:
        """Return the names of the files that are whole."""
        return {path.name for path in self.path.iterdir() if not path.name.endswith(".tmp")}

    def write(self, name: str, data: bytes) -> None:
        """Write a small file; its name may begin with a folder."""
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        draft = target.with_name(target.name + ".tmp")
        draft.write_bytes(data)
        draft.replace(target)

    def publish(self) -> None:
        """Give the folder its name; what was there under it goes."""
        (self.path / _JOURNAL).unlink()
        if not self._out.exists():
            self.path.rename(self._out)
            return
        with tempfile.TemporaryDirectory(
            prefix=f"{self._out.name}.replaced-",
            dir=self._out.parent,
            ignore_cleanup_errors=True,
        ) as aside:
            old = self._out.rename(Path(aside) / self._out.name)
            try:
                self.path.rename(self._out)
            except BaseException:
                old.rename(self._out)
                raise

    def __enter__(self) -> PartialFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._keep:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def _begin(self, plan: str) -> None:
        """Drop what belongs to another plan, or is not wanted."""
        found = os.pread(self._lock, 4096, 0)
        wanted = json.dumps({"plan": plan}).encode()
        if self._keep and found == wanted:
            return
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _JOURNAL:
                path.unlink()
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, wanted, 0)
        os.fsync(self._lock)
