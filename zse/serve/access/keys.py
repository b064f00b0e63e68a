"""API keys: what is known of one, and how a new one is made.

Of a key only its SHA-256 is kept. A key is 256 random bits, which nobody finds by trying, so a slow
hash would protect nothing: it would only let anyone keep the server busy.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from zse.errors import UsageError
from zse.serve.access.caller import MAX_PRIORITY, Caller, Scope

PREFIX = "zse-"
_RANDOM_BYTES = 32
MAX_WEIGHT = 1000
MAX_LIMIT = 10**12
LAST_MOMENT = 253_402_300_799
"""The last second of the year 9999, in Unix seconds: no calendar of Python's says a later one."""
_SECRET = re.compile(rb"[!-~]{8,256}")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z"
_Limit = Annotated[int, Meta(ge=0, le=MAX_LIMIT)]


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key."""

    name: Annotated[str, Meta(pattern=_NAME)]
    key_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]
    """Says which key it is where the key itself must not stand."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    scope: Scope = "inference"
    created: int = 0
    """Unix seconds."""
    expires: Annotated[int, Meta(ge=0, le=LAST_MOMENT)] | None = None
    """Unix seconds; None never."""
    enabled: bool = True
    rate_limit: _Limit = 0
    """Requests in any minute; 0 as many as come."""
    tokens_per_minute: _Limit = 0
    """Prompt and answer together; 0 as many as come."""
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    """Of its requests, and the highest that they may ask for."""
    weight: Annotated[int, Meta(ge=1, le=MAX_WEIGHT)] = 1
    """Share of the engine beside other keys."""
    num_resets: int = 0
    """How often its use was set back to nothing: a running server follows."""

    def is_expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires

    def state(self, now: float) -> str:
        """Return ``active``, ``disabled`` or ``expired``."""
        if not self.enabled:
            return "disabled"
        return "expired" if self.is_expired(now) else "active"

    def to_caller(self) -> Caller:
        return Caller(
            key_id=self.key_id,
            name=self.name,
            scope=self.scope,
            priority=self.priority,
            max_priority=self.priority if self.scope != "admin" else MAX_PRIORITY,
            weight=self.weight,
            requests_per_minute=self.rate_limit,
            tokens_per_minute=self.tokens_per_minute,
            limits_epoch=self.num_resets,
        )


class KeyTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All keys of a file."""

    version: Literal[1] = 1
    enabled: bool = True
    """Whether programs on this machine are asked for a key; others always are."""
    keys: tuple[ApiKey, ...] = ()

    def find(self, name: str) -> ApiKey | None:
        return next((key for key in self.keys if key.name == name), None)


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key just made, the one time that it can be seen."""

    secret: str
    key: ApiKey

    def __repr__(self) -> str:
        return f"NewKey(key={self.key!r})"  # what is logged or shown by mistake says nothing


def make_key(name: str, **facts: object) -> NewKey:
    """Return a fresh random key; ``facts`` are other fields of ``ApiKey``.

    Raises:
        UsageError: The name or a fact is not one that a key can have.
    """
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    return NewKey(secret=secret, key=_key(secret, name, secrets.token_hex(8), facts))


def key_from_secret(secret: str, name: str, scope: Scope) -> ApiKey:
    """Return the key that a secret from the environment is: the same in every replica.

    Raises:
        UsageError: The secret is too short, too long, or holds what no header may.
    """
    if not is_well_formed(secret.encode()):
        raise UsageError(
            f"{name} is no API key: {len(secret)} characters, expected 8 to 256 visible ASCII ones",
            hint="`zse api-key create NAME` makes one.",
        )
    identity = hashlib.sha256(b"zse key id\0" + secret.encode()).hexdigest()[:16]
    return _key(secret, name, identity, {"scope": scope})


def _key(secret: str, name: str, key_id: str, facts: dict[str, object]) -> ApiKey:
    known = {"name": name, "key_id": key_id, "sha256": digest_of(secret.encode())}
    try:
        return msgspec.convert({"created": int(time.time()), **facts, **known}, ApiKey)
    except msgspec.ValidationError as error:
        hint = "A name has up to 64 letters, digits, dots, dashes, underscores or at signs."
        raise UsageError(f"a key cannot be like this: {error}", hint=hint) from None


def is_well_formed(secret: bytes) -> bool:
    """Whether a secret has the length and the characters of one: what has not is not hashed."""
    return _SECRET.fullmatch(secret) is not None


def digest_of(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()
