"""Image references: ``[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]``."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from zse.oci.errors import BadReferenceError
from zse.records import record

DEFAULT_HOST = "docker.io"
_DEFAULT_HOST_API = "registry-1.docker.io"
_REPOSITORY = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
_PATTERN = re.compile(
    rf"(?P<repository>{_REPOSITORY})"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@record
class Reference:
    """A parsed reference. ``host`` is the name people write, ``api_host`` the one to talk to."""

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def api_host(self) -> str:
        return _DEFAULT_HOST_API if self.host == DEFAULT_HOST else self.host

    @property
    def identifier(self) -> str:
        """What manifests are asked for by: the digest when there is one, else the tag."""
        return self.digest or self.tag or "latest"

    @property
    def is_loopback(self) -> bool:
        """Whether the registry runs on this machine, where plain HTTP is accepted."""
        try:
            name = urlsplit(f"//{self.host}").hostname or ""
            return name == "localhost" or ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.repository}{tag}{digest}"


def parse_reference(text: str) -> Reference:
    """Parse an image reference.

    Raises:
        BadReferenceError: The text does not follow the grammar of references.
    """
    host, rest = DEFAULT_HOST, text
    head, slash, tail = text.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        host, rest = head, tail
    match = _PATTERN.fullmatch(rest)
    if match is None or not re.fullmatch(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9a-fA-F:]+\](:\d+)?", host):
        raise BadReferenceError(
            f"{text!r} is not an image reference",
            hint="Write HOST/REPOSITORY:TAG, the repository in lower case.",
        )
    repository = match["repository"]
    if host == DEFAULT_HOST and "/" not in repository:
        repository = f"library/{repository}"
    return Reference(
        host=host, repository=repository, tag=match["tag"] or "", digest=match["digest"] or ""
    )
