"""Where an object is: a path on this machine, or a bucket and a key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zse.errors import UsageError

MAX_KEY_BYTES = 1024
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Location:
    """One parsed place. ``path`` is set for local files; ``bucket`` and ``key`` for S3.

    A key that is empty or ends in ``/`` is a prefix: it can be listed, not read or written.
    """

    scheme: Literal["file", "s3"]
    path: Path = Path()
    bucket: str = ""
    key: str = ""

    @property
    def url(self) -> str:
        """The location as text, in the form that ``parse_location`` accepts."""
        return str(self.path) if self.is_local else f"s3://{self.bucket}/{self.key}"

    @property
    def is_local(self) -> bool:
        """Whether the bytes are files of this machine."""
        return self.scheme == "file"

    @property
    def is_prefix(self) -> bool:
        """Whether this names a group of S3 objects instead of one."""
        return self.scheme == "s3" and (not self.key or self.key.endswith("/"))

    @property
    def name(self) -> str:
        """The last part of the path or key."""
        return self.path.name if self.is_local else self.key.rstrip("/").rpartition("/")[2]

    def __str__(self) -> str:
        return self.url


def parse_location(url: str | Path | Location) -> Location:
    """Read a path, ``file:///path`` or ``s3://bucket/key``.

    Keys are taken as they stand: no percent-decoding, and ``?`` and ``#`` are ordinary characters.

    Raises:
        UsageError: The text is empty, has another scheme, or breaks a naming rule.
    """
    if isinstance(url, Location):
        return url
    if isinstance(url, Path):
        return Location(scheme="file", path=url)
    if not url:
        raise UsageError("an empty location", hint="Give a path or s3://bucket/key.")
    match = _SCHEME.match(url)
    if match is None:
        return _parse_local(url, url)
    scheme, rest = match[1].lower(), url[match.end() :]
    if scheme == "s3":
        return _parse_s3(url, rest)
    if scheme == "file":
        if not rest.startswith("/"):
            raise UsageError(
                f"{url!r} names a host or a relative path", hint="Write file:///absolute/path."
            )
        return _parse_local(url, rest)
    raise UsageError(
        f"{url!r} has the scheme {scheme}://, which is not supported",
        hint="Use a local path or s3://bucket/key.",
    )


def _parse_local(url: str, text: str) -> Location:
    if "\0" in text:
        raise UsageError(f"{url!r} holds a NUL character", hint="Give an ordinary path.")
    try:
        return Location(scheme="file", path=Path(text).expanduser())
    except RuntimeError as error:
        raise UsageError(
            f"{url!r} starts with ~, and no home folder is known for it",
            hint="Write the whole path, or ./~name for a file of that name.",
        ) from error


def _parse_s3(url: str, rest: str) -> Location:
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or _IPV4.fullmatch(bucket):
        raise UsageError(
            f"{url!r} has the bucket name {bucket!r}, which is not a valid one",
            hint="3 to 63 lowercase letters, digits, dots and hyphens; no IP address.",
        )
    if len(key.encode(errors="surrogatepass")) > MAX_KEY_BYTES:
        raise UsageError(
            f"the key of s3://{bucket}/{key[:40]}... is longer than {MAX_KEY_BYTES} bytes",
            hint="Choose a shorter key.",
        )
    if _CONTROL.search(key) or any("\ud800" <= character <= "\udfff" for character in key):
        raise UsageError(
            f"{url!r} holds control characters or bytes that are not UTF-8",
            hint="Use a key of printable characters.",
        )
    # Empty, "." and ".." parts are legal in S3, but HTTP clients and proxies rewrite such paths.
    parts = key.split("/")[:-1] if key.endswith("/") else key.split("/")
    if key and any(part in ("", ".", "..") for part in parts):
        raise UsageError(
            f"{url!r} has an empty, '.' or '..' part in its key",
            hint="Write s3://bucket/folder/name with single slashes.",
        )
    return Location(scheme="s3", bucket=bucket, key=key)
