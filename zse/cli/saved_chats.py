"""Conversations of the terminal that are kept: a JSON file each, in the user's folder of zse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse.errors import NotFoundError, StoreError, UsageError
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.cli.chat_backends import Message

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ROLES = ("system", "user", "assistant")
_MOST_BYTES = 16 << 20


class SavedChats:
    """Reads and writes conversations by a name in ``folder``, or by the path of a file.

    What has a slash or ends in ``.json`` is a path; anything else is a name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names that are kept, the newest first."""
        files = [path for path in self._folder.glob("*.json") if _NAME.fullmatch(path.stem)]
        return [path.stem for path in sorted(files, key=_changed_at, reverse=True)]

    def save(self, name: str, messages: Sequence[Message]) -> Path:
        """Write a conversation; return where. One of the same name is replaced.

        Raises:
            StoreError: The file cannot be written.
            UsageError: It is neither a name nor a path.
        """
        path = self._path(name)
        text = json.dumps(list(messages), ensure_ascii=False, indent=2) + "\n"
        try:
            if path.parent == self._folder:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.parent.stat()  # a folder that was named is not made: it may be a typing error
            write_whole(path, text, mode=0o600)
        except OSError as error:
            raise StoreError(
                f"cannot write {path}: {error.strerror}", hint="Try another."
            ) from None
        return path

    def load(self, name: str) -> list[Message]:
        """Return a conversation.

        Raises:
            NotFoundError: There is none of that name.
            StoreError: The file cannot be read.
            UsageError: It is no conversation: not a list of messages with role and content.
        """
        path = self._path(name)
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise UsageError(f"{path} has more than {_MOST_BYTES >> 20} MiB")
            read: Any = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NotFoundError(
                f"no conversation {name!r}", hint="/saved lists those that are kept."
            ) from None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, RecursionError):
            read = None
        if not isinstance(read, list) or not all(map(_is_message, read)):
            raise UsageError(
                f"{path} is no conversation",
                hint='It is a list of {"role": "user", "content": "..."}, as /save writes it.',
            )
        return [{"role": each["role"], "content": each["content"]} for each in read]

    def _path(self, name: str) -> Path:
        if "/" in name or name.endswith(".json"):
            return Path(name).expanduser()
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name of a conversation",
                hint="Use letters, digits, dots, dashes and underscores, or the path of a file.",
            )
        return self._folder / f"{name}.json"


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("role") in _ROLES
        and isinstance(value.get("content"), str)
    )


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
