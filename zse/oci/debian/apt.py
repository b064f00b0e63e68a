"""Where apt gets Debian packages from, read from its own configuration.

Both of its forms are understood: one line a source (``deb URI SUITE COMPONENT``) and paragraphs
(``URIs:``, ``Suites:``). Only the mirrors are taken from it; which suite an image uses is the
recipe's business, so a host with another release serves as well.
"""

from __future__ import annotations

from pathlib import Path

from zse.records import record

APT_FOLDER = Path("/etc/apt")


@record
class Mirrors:
    """Base addresses of the two archives, without a trailing slash; security may be absent."""

    debian: str
    security: str = ""

    def of(self, archive: str) -> str:
        """Return the address of the archive named ``debian`` or ``debian-security``."""
        return self.security if archive == "debian-security" else self.debian


DEBIANS_OWN = Mirrors(
    debian="http://ftp.debian.org/debian", security="http://security.debian.org/debian-security"
)
"""For hosts that are not Debian. Packages are held to the digests in the locks, and an index to
Debian's signature, whatever carries them."""


def find_mirrors(mirror: str = "", *, apt_folder: Path = APT_FOLDER) -> Mirrors:
    """Return the mirrors to use.

    Args:
        mirror: Address given by the user; its security archive is expected beside it, under the
            same address with ``-security`` added, as public mirrors have it.
        apt_folder: Where apt's configuration lies; Debian's own mirror where it names none.
    """
    if mirror:
        address = mirror.rstrip("/")
        return Mirrors(debian=address, security=f"{address}-security")
    found: dict[str, str] = {}
    for address in _addresses(apt_folder):
        archive = address.rpartition("/")[2]
        if archive in {"debian", "debian-security"}:
            found.setdefault(archive, address)
    if "debian" not in found:
        return DEBIANS_OWN
    return Mirrors(debian=found["debian"], security=found.get("debian-security", ""))


def _addresses(apt_folder: Path) -> list[str]:
    """List the addresses of all binary sources, in apt's order."""
    parts = apt_folder / "sources.list.d"
    addresses: list[str] = []
    for path in filter(Path.is_file, [apt_folder / "sources.list", *sorted(parts.glob("*.list"))]):
        addresses += _one_line_addresses(path.read_text())
    for path in sorted(parts.glob("*.sources")):
        for paragraph in parse_paragraphs(path.read_text()):
            if "deb" in paragraph.get("types", "deb").split() and paragraph.get("enabled") != "no":
                addresses += paragraph.get("uris", "").split()
    schemes = ("http://", "https://")  # a file: archive or a disc is apt's alone
    return [text.rstrip("/") for text in addresses if text.startswith(schemes)]


def _one_line_addresses(text: str) -> list[str]:
    addresses = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words[:1] != ["deb"]:
            continue
        rest = words[1:]
        if rest and rest[0].startswith("["):  # options may hold blanks: skip to the closing bracket
            end = next((i for i, word in enumerate(rest) if word.endswith("]")), len(rest))
            rest = rest[end + 1 :]
        addresses += rest[:1]
    return addresses


def parse_paragraphs(text: str) -> list[dict[str, str]]:
    """Parse deb822 text: paragraphs of ``Key: value`` with folded lines; keys in lower case."""
    paragraphs: list[dict[str, str]] = []
    current: dict[str, str] = {}
    key = ""
    for line in [*text.splitlines(), ""]:
        if not line.strip():
            if current:
                paragraphs.append(current)
            current, key = {}, ""
        elif line.startswith("#"):
            continue
        elif line[0] in " \t":
            if key:
                current[key] += "\n" + line.strip()
        else:
            key, _, value = line.partition(":")
            key = key.lower()
            current[key] = value.strip()
    return paragraphs
