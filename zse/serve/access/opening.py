"""How a server comes to its keys when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import BadSettingError, RefusedError, ZSEError, needing
from zse.records import record
from zse.serve.access.key_file import FILE_NAME, KeyFile
from zse.serve.access.keyring import Keyring, SecretFile, parse_secrets
from zse.serve.access.keys import make_key
from zse.serve.access.policy import Access

if TYPE_CHECKING:
    from zse.settings import Settings

FIRST_KEY = "first"
_STORAGES = frozenset({"redis", "rediss", "unix"})


@record
class OpenedAccess:
    """What a start has of it."""

    access: Access
    notice: str = ""
    """What the person who started the server must read once: it may hold a key."""


def key_file_of(settings: Settings) -> KeyFile:
    """Return the file that ``zse api-key`` writes."""
    return KeyFile((settings.home / FILE_NAME).expanduser())


def open_access(settings: Settings, *, is_local: bool) -> OpenedAccess:
    """Return who decides about requests, with the first key where there must be one.

    Raises:
        ZSEError: A key, or a file of keys, cannot be trusted or understood.
    """
    options = settings.serve.access
    if options.limits_storage:
        _check_storage(options.limits_storage)
    file, mounted = key_file_of(settings), options.api_keys_file
    keyring = Keyring(
        fixed=parse_secrets(options.api_keys, "environment"),
        secret_file=SecretFile(Path(mounted)) if mounted else None,
        key_file=file,
    )
    access = Access(
        keyring,
        is_local=is_local,
        is_public=options.public,
        shows_measures=options.open_metrics,
        limits_storage=options.limits_storage,
    )
    if is_local or options.public or keyring.known:
        return OpenedAccess(access=access)
    return OpenedAccess(access=access, notice=_make_first_key(keyring, file))


def _check_storage(url: str) -> None:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _STORAGES:
        raise BadSettingError(
            f"limits_storage names no Redis: it begins with {scheme[:20]!r}",
            hint="Write redis://HOST:6379/0.",
        )
    with needing("redis", "limits_storage"):
        import redis  # noqa: F401 - here, not with the first request of a limited key


def _make_first_key(keyring: Keyring, file: KeyFile) -> str:
    """Let nobody in but who reads this process's output; return what it says."""
    new = make_key(FIRST_KEY, scope="admin")
    try:
        file.add(new.key)
        keyring.look()
        place = f"It is kept in {file.path} as '{FIRST_KEY}'"
    except RefusedError:
        raise
    except ZSEError:  # nothing can be written here, or another server was first
        place = "It ends with this process; ZSE_API_KEYS gives one that stays"
        keyring.add(new.key)
    return (
        "Other machines can reach this server, so it asks for an API key. The first one, shown "
        f"only this once:\n\n    {new.secret}\n\n"
        f"{place}; `zse api-key` makes more. Clients send 'Authorization: Bearer KEY'.\n"
        "If a gate in front of it checks who comes, start with --public.\n"
    )
