"""The file of API keys: read with suspicion, written whole, one writer at a time.

Who can write this file can let anyone in, so it must be an ordinary file of this user that nobody
else reads or writes; anything else is refused, never mended in silence.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import msgspec

from zse.errors import NotFoundError, RefusedError, UsageError
from zse.serve.access.keys import KeyTable
from zse.store.locks import locked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.serve.access.keys import ApiKey

FILE_NAME = "api_keys.json"
MAX_KEYS = 10_000
MAX_FILE_BYTES = 16 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ABSENT = (0, 0, 0)


class KeyFile:
    """A file of keys, which need not be there yet.

    Args:
        path: Its name; the folder is made, for this user alone, with the first key.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def version(self) -> tuple[int, int, int]:
        """Return what every change of the file changes."""
        try:
            facts = self.path.lstat()
        except OSError:
            return _ABSENT
        return facts.st_ino, facts.st_size, facts.st_mtime_ns

    def read(self) -> KeyTable:
        """Return the keys; none where there is no file.

        Raises:
            RefusedError: The file is a link, another user's, open to others, or not a key file.
            StoreError: It cannot be read.
        """
        data = self._bytes()
        if data is None:
            return KeyTable()
        try:
            table = msgspec.json.decode(data, type=KeyTable)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedError(
                f"{self.path} is no file of API keys: {error}",
                hint="Restore it, or move it away and create the keys anew.",
            ) from None
        if len({key.name for key in table.keys}) < len(table.keys):
            raise RefusedError(f"{self.path} has two API keys of one name", hint="Remove one.")
        return table

    def change(self, edit: Callable[[KeyTable], KeyTable]) -> KeyTable:
        """Replace the table by what ``edit`` makes of it, while nobody else does; return that.

        Raises:
            RefusedError: As ``read``.
            UsageError: There would be too many keys.
            StoreError: The file cannot be written.
        """
        from zse.store.local import translated_os_error
        from zse.store.private_file import PrivateWriter

        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.path.with_name(f".{self.path.name}.lock")):
                table = edit(self.read())
                if len(table.keys) > MAX_KEYS:
                    raise UsageError(f"{self.path} would hold more than {MAX_KEYS:,} keys")
                with PrivateWriter(self.path) as file:
                    file.write(msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n")
        except OSError as error:
            raise translated_os_error(error, self.path, "write") from error
        return table

    def add(self, key: ApiKey) -> None:
        """Add a key.

        Raises:
            UsageError: There is one of that name already.
        """

        def edit(table: KeyTable) -> KeyTable:
            if table.find(key.name):
                raise UsageError(
                    f"there is an API key {key.name!r} already",
                    hint=f"Choose another name, or: zse api-key delete {key.name}",
                )
            return msgspec.structs.replace(table, keys=(*table.keys, key))

        self.change(edit)

    def update(self, name: str, edit: Callable[[ApiKey], ApiKey | None]) -> ApiKey:
        """Replace one key by what ``edit`` makes of it, or remove it; return what it was.

        Raises:
            NotFoundError: There is no key of that name.
        """
        found: list[ApiKey] = []

        def edit_table(table: KeyTable) -> KeyTable:
            old = table.find(name)
            if old is None:
                raise no_such_key(name)
            found.append(old)
            new = edit(old)
            keys = (new if key is old else key for key in table.keys)
            return msgspec.structs.replace(table, keys=tuple(key for key in keys if key))

        self.change(edit_table)
        return found[0]

    def _bytes(self) -> bytes | None:
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self.path, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            if self.path.is_symlink():
                raise self._refusal("is a symbolic link", "Put the file itself there.") from None
            from zse.store.local import translated_os_error

            raise translated_os_error(error, self.path, "read") from error
        with os.fdopen(descriptor, "rb") as file:
            self._check(os.fstat(descriptor))
            return file.read(MAX_FILE_BYTES)

    def _check(self, facts: os.stat_result) -> None:
        if not stat.S_ISREG(facts.st_mode):
            raise self._refusal("is not an ordinary file", "Move it away.")
        if facts.st_uid not in {os.geteuid(), 0}:
            raise self._refusal(f"belongs to user {facts.st_uid}", "Only its owner may use it.")
        if facts.st_mode & _OTHERS:
            mode = stat.S_IMODE(facts.st_mode)
            raise self._refusal(f"is open to others (mode {mode:04o})", f"chmod 600 {self.path}")
        if facts.st_size >= MAX_FILE_BYTES:
            raise self._refusal(f"has {facts.st_size:,} bytes", "Move it away.")

    def _refusal(self, what: str, hint: str) -> RefusedError:
        return RefusedError(f"{self.path}, which holds API keys, {what}", hint=hint)


def no_such_key(name: str) -> NotFoundError:
    return NotFoundError(
        f"there is no API key {name[:64]!r}", hint="`zse api-key list` shows those that are there."
    )
