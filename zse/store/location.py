"""Where an object is: a path on this machine, a bucket and a key, a hub's file, a web address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from zse.errors import RefusedError, UsageError
from zse.records import record

MAX_KEY_BYTES = 1024
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*", re.ASCII)
_REVISION = re.compile(r"[\w.\-]+(?:/[\w.\-]+)*", re.ASCII)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# A shell's completion, ``Path`` and people drop a slash; then it would be a path of this machine.
_LOST_SLASH = re.compile(r"(s3|hf|https?|file):/?(?!/)")
_HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_HUB_PAGES = frozenset({"datasets", "spaces", "docs", "api"})


@record
class Location:
    """One parsed place.

    A key that is empty or ends in ``/`` is a prefix: it can be listed, not read or written.
    """

    scheme: Literal["file", "s3", "hf", "https", "http"]
    path: Path = Path()
    """Of a local file."""
    bucket: str = ""
    """Of S3."""
    key: str = ""
    """Of S3, or the file's path in a repository."""
    repository: str = ""
    """Of a hub: ``owner/name``."""
    revision: str = ""
    """Of a hub: branch, tag or commit; empty means the default branch."""
    address: str = ""
    """Of the web: everything, query included."""

    @property
    def url(self) -> str:
        """The location as text, in the form that ``parse_location`` accepts."""
        if self.is_local:
            return "./" * bool(_LOST_SLASH.match(str(self.path))) + str(self.path)
        if self.scheme == "s3":
            return f"s3://{self.bucket}/{self.key}"
        if self.scheme == "hf":
            at_revision = f"@{self.revision.replace('/', '%2F')}" if self.revision else ""
            return f"hf://{self.repository}{at_revision}/{self.key}"
        return self.address

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    @property
    def is_prefix(self) -> bool:
        """Whether this names a group of objects instead of one."""
        return self.scheme in ("s3", "hf") and (not self.key or self.key.endswith("/"))

    @property
    def name(self) -> str:
        if self.is_local:
            return self.path.name
        text = urlsplit(self.address).path if self.address else self.key
        return text.rstrip("/").rpartition("/")[2]

    def __str__(self) -> str:
        """Return the URL without a query: signed addresses are secrets."""
        if not self.address:
            return self.url
        plain, mark, _ = self.address.partition("?")
        return plain + "?..." * bool(mark)


def is_address(text: str) -> bool:
    """Whether a text is written as an address, ``scheme://...``, and so is no path, name or hub id.

    Which schemes there are is for ``parse_location`` to say.
    """
    return _SCHEME.match(text) is not None


def is_hub_id(text: str) -> bool:
    """Whether a text has the form ``owner/name``, as repositories of the hub do."""
    return _HUB_ID.fullmatch(text) is not None and ".." not in text


def parse_location(url: str | Path | Location) -> Location:
    """Read a path, ``file:///path``, ``s3://bucket/key``, ``hf://owner/name@rev/file`` or https.

    Keys are taken as they stand: no percent-decoding, and ``?`` and ``#`` are ordinary characters.
    The web page of a repository or a file of the hub means the repository or the file.

    Raises:
        UsageError: The text is empty, has another scheme, or breaks a naming rule.
        RefusedError: A web address is not encrypted, or carries a password.
    """
    if isinstance(url, Location):
        return url
    if isinstance(url, Path):
        return Location(scheme="file", path=url)
    if not url:
        raise UsageError("an empty location", hint="Give a path or s3://bucket/key.")
    match = _SCHEME.match(url)
    if match is None:
        if (lost := _LOST_SLASH.match(url)) is not None:
            raise UsageError(
                f"{url!r} lacks a slash: an address starts with {lost[1]}://",
                hint=f"Write {lost[1]}://{url[lost.end() :]}, or ./{url} for a path.",
            )
        return _parse_local(url, url)
    scheme, rest = match[1].lower(), url[match.end() :]
    if scheme == "s3":
        return _parse_s3(url, rest)
    if scheme == "hf":
        return _parse_hub(url, rest)
    if scheme in ("https", "http"):
        return _parse_web(url)
    if scheme == "file":
        if not rest.startswith("/"):
            raise UsageError(
                f"{url!r} names a host or a relative path", hint="Write file:///absolute/path."
            )
        return _parse_local(url, rest)
    raise UsageError(
        f"{url!r} has the scheme {scheme}://, which is not supported",
        hint="Use a path, s3://bucket/key, hf://owner/name/file or https://host/file.",
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
    _check_key(url, key)
    return Location(scheme="s3", bucket=bucket, key=key)


def _check_key(url: str, key: str) -> None:
    _check_characters(url)
    # Empty, "." and ".." parts are legal in S3, but HTTP clients and proxies rewrite such paths.
    parts = key.split("/")[:-1] if key.endswith("/") else key.split("/")
    if key and any(part in ("", ".", "..") for part in parts):
        raise UsageError(
            f"{url!r} has an empty, '.' or '..' part in its key",
            hint="Write s3://bucket/folder/name with single slashes.",
        )


def _check_characters(url: str) -> None:
    if _CONTROL.search(url) or any("\ud800" <= character <= "\udfff" for character in url):
        raise UsageError(
            f"{url!r} holds control characters or bytes that are not UTF-8",
            hint="Use printable characters.",
        )


def _parse_hub(url: str, rest: str) -> Location:
    """Read ``owner/name[@revision]/path``; a revision with a slash is written with ``%2F``."""
    owner, _, rest = rest.partition("/")
    name, _, key = rest.partition("/")
    name, mark, revision = name.partition("@")
    revision = revision.replace("%2F", "/").replace("%2f", "/")
    if not is_hub_id(f"{owner}/{name}"):
        raise UsageError(
            f"{url!r} names no repository of the hub",
            hint="Write hf://owner/name/file or hf://owner/name@revision/file.",
        )
    if mark and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(
            f"{url!r} has the revision {revision!r}, which is not a branch, tag or commit",
            hint="Write hf://owner/name@revision/file; write a slash in a branch's name as %2F.",
        )
    _check_key(url, key)
    return Location(scheme="hf", repository=f"{owner}/{name}", revision=revision, key=key)


def _parse_web(url: str) -> Location:
    _check_characters(url)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(
            f"{url!r} is no web address: {error}", hint="Write https://host/file."
        ) from error
    if not host or " " in url or not url.isascii():
        raise UsageError(
            f"{url!r} is no web address", hint="Write https://host/file, percent-encoded."
        )
    if "@" in parts.netloc:
        raise RefusedError(
            f"the address of {host} holds a password",
            hint="Addresses end up in logs: use a signed address or another store.",
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise RefusedError(
            f"http://{host} is not encrypted, so what comes could be anything",
            hint="Use https://. Plain http is accepted on this machine's own loopback only.",
        )
    if host in _HUB_HOSTS and (page := _hub_page(url, parts.path)) is not None:
        return page
    scheme: Literal["https", "http"] = "https" if parts.scheme == "https" else "http"
    return Location(scheme=scheme, address=url.partition("#")[0])


def _hub_page(url: str, path: str) -> Location | None:
    """Return what a page of the hub shows; None for what is no such page, a download included."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    owner, name, kind, revision, *rest = (*parts, "", "", "", "")
    if owner in _HUB_PAGES or not is_hub_id(f"{owner}/{name}"):
        return None
    if kind not in ("", "tree", "blob") or (kind and not revision):
        return None
    at_revision = "@" + revision.replace("/", "%2F") if kind else ""
    key = "/".join(part for part in rest if part)
    slash = "/" if kind == "tree" and key else ""
    return _parse_hub(url, f"{owner}/{name}{at_revision}/{key}{slash}")


def check_is_object(location: Location) -> None:
    """Refuse a folder, with a UsageError, where an object is asked for."""
    if location.is_prefix or (location.is_local and location.path.is_dir()):
        raise UsageError(
            f"{location} names a folder, not an object",
            hint=f"Add a name: {location.url.rstrip('/')}/NAME",
        )


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK
