"""The keys that a running server knows, and which of them a request shows.

They come from the environment, from a mounted secret and from the file of ``zse api-key``. Files
are looked at once a second at most, however many requests come, and read only when they changed.
"""

from __future__ import annotations

import hmac
import logging
import time
from typing import TYPE_CHECKING, cast

from zse.errors import BadSettingError, ZSEError
from zse.serve.access.caller import SCOPES, Scope
from zse.serve.access.keys import KeyTable, digest_of, is_well_formed, key_from_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zse.serve.access.key_file import KeyFile
    from zse.serve.access.keys import ApiKey

LOG = logging.getLogger("zse.serve")
LOOK_SECONDS = 1.0
"""How long a change of a file may go unnoticed."""
_MAX_SECRET_FILE_BYTES = 1 << 20


class SecretFile:
    """A file of secrets that somebody else keeps, as Docker and Kubernetes mount them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def version(self) -> tuple[int, int, int]:
        """Return what every change changes, through the links that Kubernetes swaps.

        Raises:
            BadSettingError: There is no such file.
        """
        try:
            facts = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from None
        return facts.st_ino, facts.st_size, facts.st_mtime_ns

    def read(self) -> tuple[ApiKey, ...]:
        """Return its keys: separated by commas or lines, as ``parse_secrets`` has them.

        Raises:
            BadSettingError: It cannot be read, or holds something else.
        """
        try:
            with self._path.open("rb") as file:
                text = file.read(_MAX_SECRET_FILE_BYTES).decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from None
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        return parse_secrets(",".join(lines), "secret-file")

    def _unreadable(self, error: Exception) -> BadSettingError:
        what = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
        return BadSettingError(
            f"the file of API keys {self._path} cannot be read: {what}",
            hint="Mount the secret there, or name another file with --api-keys-file.",
        )


def parse_secrets(text: str, origin: str) -> tuple[ApiKey, ...]:
    """Return keys from ``KEY,KEY,admin:KEY``; without a scope they are for inference.

    Raises:
        UsageError: A secret is too short, too long, or holds what no header may.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    found = []
    for index, word in enumerate(words, 1):
        scope, colon, secret = word.partition(":")
        if not colon or scope not in SCOPES:
            scope, secret = "inference", word
        found.append(key_from_secret(secret.strip(), f"{origin}-{index}", cast("Scope", scope)))
    return tuple(found)


class Keyring:
    """All keys, found by what a request shows.

    Args:
        fixed: Keys that never change.
        secret_file: Where more of them may change.
        key_file: What ``zse api-key`` writes.
        clock: Seconds that only grow.

    Raises:
        ZSEError: A file cannot be trusted or understood. Later that is only logged: the keys that
            were known stay those that are.
    """

    def __init__(
        self,
        *,
        fixed: Sequence[ApiKey] = (),
        secret_file: SecretFile | None = None,
        key_file: KeyFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = tuple(fixed)
        self._secret_file = secret_file
        self.key_file = key_file
        self._clock = clock
        self._is_enabled = True
        self._keys: tuple[ApiKey, ...] = ()
        self._versions: tuple[object, ...] = ()
        self._looked_at = clock()
        self._read_changed()

    @property
    def is_enabled(self) -> bool:
        """Whether programs on this machine are asked for a key; others always are."""
        self._look()
        return self._is_enabled

    @property
    def known(self) -> tuple[ApiKey, ...]:
        """Every key, those that are disabled or expired among them."""
        self._look()
        return self._keys

    def add(self, key: ApiKey) -> None:
        """Know one more key, as long as the process lives."""
        self._fixed = (*self._fixed, key)
        self._keys = (*self._keys, key)

    def find(self, secret: bytes) -> ApiKey | None:
        """Return the key that a secret is.

        It is compared with all of them, each in constant time: how long this takes says nothing.
        """
        if not is_well_formed(secret):
            return None
        digest = digest_of(secret)
        found = None
        for key in self.known:
            if hmac.compare_digest(digest, key.sha256):
                found = key
        return found

    def _look(self) -> None:
        if self._clock() - self._looked_at >= LOOK_SECONDS:
            self.look()

    def look(self) -> None:
        """Look at the files now; what cannot be read changes nothing."""
        self._looked_at = self._clock()
        try:
            self._read_changed()
        except ZSEError as error:
            LOG.error("API keys stay as they were: %s", error, extra={"hint": error.hint})  # noqa: TRY400

    def _read_changed(self) -> None:
        files = (self._secret_file, self.key_file)
        versions = tuple(file.version() if file is not None else None for file in files)
        if versions == self._versions:
            return
        mounted = self._secret_file.read() if self._secret_file is not None else ()
        table = self.key_file.read() if self.key_file is not None else KeyTable()
        self._is_enabled = table.enabled or bool(self._fixed or mounted)
        self._keys = (*self._fixed, *mounted, *table.keys)
        self._versions = versions
