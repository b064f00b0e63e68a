"""A base image from Debian packages, with no dpkg, no shell, no root and no registry.

Packages are unpacked as they are; the little that their scripts would have made (users, the CA
bundle, the merged-usr links, mount points) is written here. The loader's cache is not needed: the
loader looks into the multiarch folders, where all libraries lie, on its own.
"""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx

from zse.oci.debian.deb import deb_entries
from zse.oci.debian.index import Package, read_index, release_digests, resolve, verify_release
from zse.oci.errors import DigestMismatchError, ImageRule, LockError
from zse.oci.layout.tar import Entry, Kind, directory, file_of_bytes, symlink
from zse.oci.recipe import DebianRecipe, load_lock, lock_name, write_lock
from zse.records import record
from zse.store.http.retry import BUSY_STATUSES, BusyServerError, patiently
from zse.store.local import LocalWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from zse.oci.debian.apt import Mirrors

LOCK_KIND = "debian"
_LOCKED = ("name", "version", "archive", "path", "sha256", "size_bytes")
"""Fields of a package that a lock holds, beside its suite."""
SUITE_PYTHON = {"bookworm": "3.11", "trixie": "3.13"}
NONROOT_ID = 65532
_CONNECTIONS = 4
_TIMEOUT = httpx.Timeout(30.0, read=120.0)
_TRY_AGAIN: tuple[type[Exception], ...] = (httpx.HTTPError, BusyServerError)
_CA_FOLDER = "usr/share/ca-certificates/mozilla/"


@record
class Archive:
    """Access to a Debian mirror: where it is, what was fetched before, whom to tell."""

    mirrors: Mirrors
    cache: Path
    report: Callable[[str], None]
    transport: httpx.BaseTransport | None = None

    def get(self, archive: str, path: str) -> bytes | None:
        """Return a file of the archive, or None when the mirror does not have it.

        Raises:
            ImageError: The mirror cannot be reached or answers with an error.
        """
        address = f"{self.mirrors.of(archive)}/{path}"
        try:
            return patiently(lambda: self._get_once(address), retried=_TRY_AGAIN)
        except _TRY_AGAIN as error:
            raise ImageRule.DEBIAN(
                f"the Debian mirror could not be reached: {error}",
                hint="Check the network, or name another mirror with --mirror.",
            ) from error

    def _get_once(self, address: str) -> bytes | None:
        with httpx.Client(
            transport=self.transport, timeout=_TIMEOUT, follow_redirects=True
        ) as client:
            answer = client.get(address)
        if answer.status_code in BUSY_STATUSES:
            raise BusyServerError(
                f"{address} was answered with {answer.status_code}",
                answer.headers.get("retry-after"),
            )
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise ImageRule.DEBIAN(f"the Debian mirror answered {answer.status_code} for {address}")
        return answer.content

    def fetch(self, package: Package) -> Path:
        """Return a package as a local file whose SHA-256 was checked.

        Raises:
            LockError: The mirror does not carry this version any more.
            DigestMismatchError: The mirror gave other bytes.
        """
        target = self.cache / f"{package.sha256}.deb"
        if target.is_file():
            return target
        data = self.get(package.archive, package.path)
        if data is None:
            raise LockError(
                f"the mirror does not carry {package.name} {package.version} any more",
                hint="Debian replaced it: run again with --update-lock.",
            )
        found = hashlib.sha256(data).hexdigest()
        if found != package.sha256:
            raise DigestMismatchError(
                f"{package.path} has SHA-256 {found}, expected {package.sha256}"
            )
        with LocalWriter(target) as file:
            file.write(data)
        return target

    def fetch_all(self, packages: Sequence[Package]) -> list[Path]:
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            return list(pool.map(self.fetch, packages))


def read_debian_lock(folder: Path, recipe: DebianRecipe) -> list[Package]:
    """Read the locked packages.

    Raises:
        LockError: The lock is missing, malformed, or lacks a package of the recipe.
    """
    path = folder / lock_name(LOCK_KIND, recipe.architecture)
    try:
        packages = [
            Package(**{name: entry[name] for name in _LOCKED})
            for entry in load_lock(path, "package")
            if entry["suite"] == recipe.suite
        ]
    except KeyError as error:
        raise LockError(f"{path}: an entry has no {error}") from error
    absent = sorted(set(recipe.packages) - {package.name for package in packages})
    if absent:
        raise LockError(f"{path} does not lock {', '.join(absent)} for {recipe.suite}")
    return packages


def update_debian_lock(archive: Archive, recipe: DebianRecipe, folder: Path) -> list[Package]:
    """Resolve the recipe's packages against the mirror's signed indexes; write the lock."""
    packages = resolve(_all_packages(archive, recipe), recipe.packages, exclude=recipe.exclude)
    entries: list[dict[str, str | int]] = [
        {"suite": recipe.suite, **{name: getattr(package, name) for name in _LOCKED}}
        for package in packages
    ]
    write_lock(folder / lock_name(LOCK_KIND, recipe.architecture), "package", entries)
    return packages


def debian_entries(
    archive: Archive, packages: Sequence[Package], recipe: DebianRecipe
) -> Iterator[Entry]:
    """Yield the files of a root file system made of ``packages``."""
    files = archive.fetch_all(packages)
    root: dict[str, Entry] = {}
    for package, file in zip(packages, files, strict=True):
        for entry in deb_entries(file):
            seen = root.get(entry.path)
            if seen is not None and not seen.kind is entry.kind is Kind.DIRECTORY:
                raise ImageRule.DEBIAN(f"{package.name} and another package both hold {entry.path}")
            root[entry.path] = entry
    made = {entry.path: entry for entry in _made_by_scripts(root)}
    kept = {path: entry for path, entry in root.items() if _is_kept(path, recipe.prune)}
    yield from _without_empty_folders({**kept, **made})


def _all_packages(archive: Archive, recipe: DebianRecipe) -> Iterator[Package]:
    """Yield every package of the suite, its updates and its security archive."""
    sources = [
        ("debian", recipe.suite, True),
        ("debian", f"{recipe.suite}-updates", False),
        ("debian-security", f"{recipe.suite}-security", False),
    ]
    for name, suite, is_required in sources:
        if not archive.mirrors.of(name):
            archive.report(f"warning: no mirror of {name}: {suite} is left out")
            continue
        signed = archive.get(name, f"dists/{suite}/InRelease")
        if signed is None:
            if is_required:
                raise ImageRule.DEBIAN(
                    f"the mirror has no suite {suite}", hint="Try --base debian."
                )
            archive.report(f"warning: the mirror has no {suite}: it is left out")
            continue
        digests = release_digests(verify_release(signed, label=suite))
        index = f"main/binary-{recipe.architecture}/Packages.xz"
        packed = archive.get(name, f"dists/{suite}/{index}")
        if index not in digests or packed is None:
            raise ImageRule.DEBIAN(f"{suite} has no {index}")
        yield from read_index(packed, expected_sha256=digests[index], archive=name)


def _is_kept(path: str, prune: Iterable[str]) -> bool:
    if path.startswith("usr/share/doc/"):
        return path.endswith("/copyright")  # licences travel with the binaries
    return not any(fnmatch.fnmatchcase(path, rule) for rule in prune)


def _without_empty_folders(root: dict[str, Entry]) -> Iterator[Entry]:
    used: set[str] = set()
    for path, entry in root.items():
        if entry.kind is not Kind.DIRECTORY:
            parent = posixpath.dirname(path)
            while parent and parent not in used:
                used.add(parent)
                parent = posixpath.dirname(parent)
    for path, entry in root.items():
        if entry.kind is Kind.DIRECTORY and path.startswith("usr/share/") and path not in used:
            continue
        yield entry


def _made_by_scripts(root: dict[str, Entry]) -> Iterator[Entry]:
    """Yield what the packages' scripts, dpkg and a boot would have made."""
    # The loader's path is a part of every program: /lib64 where the processor's rules say so.
    has_lib64 = any(path.startswith("usr/lib64/") for path in root)
    for name in ("bin", "sbin", "lib", *(("lib64",) if has_lib64 else ())):
        yield symlink(name, f"usr/{name}")
        yield directory(f"usr/{name}")
    for name in ("proc", "sys", "dev", "run", "home", "root", "models", "etc", "var", "var/lib"):
        yield directory(name)
    for name in ("tmp", "var/tmp"):
        yield directory(name, mode=0o1777)
    yield directory("home/nonroot")
    yield file_of_bytes("etc/passwd", _accounts(root, "passwd.master") + _PASSWD_LINE)
    yield file_of_bytes("etc/group", _accounts(root, "group.master") + _GROUP_LINE)
    yield file_of_bytes("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    yield file_of_bytes("etc/ssl/certs/ca-certificates.crt", _certificates(root))
    yield symlink("usr/lib/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt")
    yield symlink("usr/lib/ssl/certs", "/etc/ssl/certs")
    yield symlink("etc/localtime", "/usr/share/zoneinfo/Etc/UTC")


_PASSWD_LINE = f"nonroot:x:{NONROOT_ID}:{NONROOT_ID}::/home/nonroot:/usr/sbin/nologin\n".encode()
_GROUP_LINE = f"nonroot:x:{NONROOT_ID}:\n".encode()


def _accounts(root: dict[str, Entry], name: str) -> bytes:
    entry = root.get(f"usr/share/base-passwd/{name}")
    return entry.read() if entry is not None else b"root:x:0:0:root:/root:/bin/sh\n"


def _certificates(root: dict[str, Entry]) -> bytes:
    paths = sorted(path for path in root if path.startswith(_CA_FOLDER) and path.endswith(".crt"))
    return b"".join(root[path].read().rstrip(b"\n") + b"\n" for path in paths)
