"""Debian's package index: its signature, its packages, and what they depend on.

The chain of trust is apt's: a key signs InRelease, InRelease lists the SHA-256 of each Packages
file, Packages lists the SHA-256 of each .deb. Resolving takes the newest version of each package
and the first alternative there is; version bounds are not solved, because one suite satisfies them.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from zse.oci.debian.apt import parse_paragraphs
from zse.oci.errors import DigestMismatchError, ImageRule
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEYRINGS = tuple(
    Path("/usr/share/keyrings") / f"debian-archive-keyring.{suffix}" for suffix in ("gpg", "pgp")
)


@record
class Package:
    """One package of an index. ``archive`` is "debian" or "debian-security"."""

    name: str
    version: str
    archive: str
    path: str
    sha256: str
    size_bytes: int
    depends: str = ""
    provides: str = ""


def verify_release(signed: bytes, *, label: str) -> str:
    """Return the signed text of an InRelease file.

    Raises:
        ImageError: The signature does not fit, or cannot be checked on this machine.
    """
    gpgv = shutil.which("gpgv")
    keyring = next((path for path in KEYRINGS if path.is_file()), None)
    if gpgv is None or keyring is None:
        absent = "gpgv" if gpgv is None else f"Debian's keyring ({KEYRINGS[0]})"
        raise ImageRule.SIGNATURE(
            f"the signature of {label} cannot be checked: {absent} is not installed, "
            "so no lock is written",
            hint="Run `apt-get install gpgv debian-archive-keyring`; elsewhere than on Debian, put "
            f"the keyring of the package debian-archive-keyring at {KEYRINGS[0]}.",
        )
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name) / "InRelease", Path(name) / "Release"
        source.write_bytes(signed)
        done = subprocess.run(
            [gpgv, "--keyring", str(keyring), "--output", str(output), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not output.is_file():
            raise ImageRule.SIGNATURE(
                f"{label} is not signed by a key in {keyring}: {done.stderr.strip()[-300:]}",
                hint="Use another mirror, or update the package debian-archive-keyring.",
            )
        return output.read_text()


def release_digests(release: str) -> dict[str, str]:
    """Read the SHA-256 list of a Release text: path -> hex digest."""
    paragraph = next(iter(parse_paragraphs(release)), {})
    rows = (line.split() for line in paragraph.get("sha256", "").splitlines())
    return {row[2]: row[0] for row in rows if len(row) == 3}


def read_index(packed: bytes, *, expected_sha256: str, archive: str) -> list[Package]:
    """Parse a Packages.xz after checking its hash.

    Raises:
        DigestMismatchError: The file is not the one that the signed index lists.
        ImageError: It cannot be unpacked.
    """
    found = hashlib.sha256(packed).hexdigest()
    if found != expected_sha256:
        raise DigestMismatchError(
            f"Packages.xz of {archive} has SHA-256 {found}, the signed index says {expected_sha256}"
        )
    try:
        text = lzma.decompress(packed).decode()
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise ImageRule.DEBIAN(f"Packages.xz of {archive} cannot be unpacked: {error}") from error
    return [_package(paragraph, archive) for paragraph in parse_paragraphs(text)]


def resolve(
    packages: Iterable[Package], roots: Sequence[str], *, exclude: Iterable[str]
) -> list[Package]:
    """Return the roots and everything they depend on, sorted by name.

    Raises:
        ImageError: A root or a dependency is not in the index.
    """
    newest: dict[str, Package] = {}
    providers: dict[str, list[str]] = {}
    for package in packages:
        known = newest.get(package.name)
        if known is None or version_key(package.version) > version_key(known.version):
            newest[package.name] = package
    for package in newest.values():
        for virtual in _names(package.provides):
            providers.setdefault(virtual[0], []).append(package.name)
    left_out, chosen, waiting = set(exclude), dict[str, Package](), list(roots)
    while waiting:
        name = waiting.pop()
        if name in chosen:
            continue
        if name not in newest:
            raise ImageRule.DEBIAN(f"the index has no package named {name}")
        chosen[name] = newest[name]
        waiting += [
            _choose(alternatives, name, newest, providers, chosen)
            for alternatives in _names(newest[name].depends)
            if left_out.isdisjoint(alternatives)
        ]
    return [chosen[name] for name in sorted(chosen)]


def version_key(version: str) -> tuple[list[tuple[list[int], int]], ...]:
    """Return what orders Debian versions: by epoch, upstream's version, Debian's revision."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    parts = (epoch, upstream, revision) if dash else (epoch, rest, "0")
    return tuple(_runs(part) for part in parts)


def _choose(
    alternatives: list[str],
    wanted_by: str,
    newest: dict[str, Package],
    providers: dict[str, list[str]],
    chosen: dict[str, Package],
) -> str:
    known = next((name for name in alternatives if name in chosen), "")
    if known:
        return known
    for name in alternatives:
        if name in newest:
            return name
        if name in providers:
            return min(providers[name])
    raise ImageRule.DEBIAN(f"{wanted_by} depends on {' | '.join(alternatives)}, which is not there")


def _package(paragraph: dict[str, str], archive: str) -> Package:
    try:
        return Package(
            name=paragraph["package"],
            version=paragraph["version"],
            archive=archive,
            path=paragraph["filename"],
            sha256=paragraph["sha256"],
            size_bytes=int(paragraph["size"]),
            depends=", ".join(
                paragraph[key] for key in ("pre-depends", "depends") if paragraph.get(key)
            ),
            provides=paragraph.get("provides", ""),
        )
    except (KeyError, ValueError) as error:
        raise ImageRule.DEBIAN(f"the index of {archive} has a broken paragraph: {error}") from error


def _names(relation: str) -> list[list[str]]:
    groups = []
    for group in relation.split(","):
        names = [re.split(r"[\s(:\[]", text.strip())[0] for text in group.split("|")]
        if any(names):
            groups.append([name for name in names if name])
    return groups


def _runs(part: str) -> list[tuple[list[int], int]]:
    """Split into runs of other characters, weighed, and of digits; "~" sorts before the end."""
    return [
        (
            [*(-1 if c == "~" else ord(c) if c.isalpha() else ord(c) + 256 for c in text), 0],
            int(number or 0),
        )
        for text, number in re.findall(r"(\D*)(\d*)", part or "0")
    ]
