"""Builders of small wheels, Debian packages, mirrors, recipes and a registry in memory."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import lzma
import re
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from pathlib import Path


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(
    folder: Path,
    name: str = "demo",
    files: dict[str, bytes] | None = None,
    *,
    record: dict[str, bytes] | None = None,
    unlisted: dict[str, bytes] | None = None,
    metadata: bytes = b"",
) -> Path:
    """Write NAME-1.0-py3-none-any.whl; ``record`` overrides what RECORD claims of a file."""
    info = f"{name}-1.0.dist-info"
    content = {
        **(files if files is not None else {f"{name}/__init__.py": b"VALUE = 1\n"}),
        f"{info}/METADATA": metadata
        or f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, data in content.items():
        digest = hashlib.sha256((record or {}).get(path, data)).digest()
        text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        lines.append(f"{path},sha256={text},{len(data)}")
    lines.append(f"{info}/RECORD,,")
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in {**content, **(unlisted or {})}.items():
            archive.writestr(zipfile.ZipInfo(member), data)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(lines) + "\n")
    return path


def make_tar(members: list[tarfile.TarInfo | tuple[str | tarfile.TarInfo, bytes]]) -> bytes:
    """Write a tar of files given as (path or header, bytes) and of headers without content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                header = member[0]
                if not isinstance(header, tarfile.TarInfo):
                    header = tarfile.TarInfo(header)
                    header.size = len(member[1])
                archive.addfile(header, io.BytesIO(member[1]))
    return buffer.getvalue()


def make_deb(files: dict[str, bytes] | bytes, *, suffix: str = ".xz") -> bytes:
    """Return a .deb that holds files, or a ready data.tar."""
    data = (
        files if isinstance(files, bytes) else make_tar([(f"./{p}", d) for p, d in files.items()])
    )
    packed = lzma.compress(data) if suffix == ".xz" else data
    result = b"!<arch>\n"
    for name, content in [("debian-binary", b"2.0\n"), (f"data.tar{suffix}", packed)]:
        result += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        result += content + b"\n" * (len(content) % 2)
    return result


@dataclass
class FakeMirror:
    """A Debian mirror in memory: packages by name, and the indexes that list them."""

    packages: dict[str, bytes] = field(default_factory=dict)
    depends: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    failures: list[httpx.Response | httpx.TransportError] = field(default_factory=list)

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/debian/")
        self.requests.append(path)
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, httpx.TransportError):
                raise failure
            return failure
        content = self._files().get(path)
        if content is None or path in self.gone:
            return httpx.Response(404)
        return httpx.Response(200, content=content)

    def _files(self) -> dict[str, bytes]:
        paragraphs, files = [], {}
        for name, data in self.packages.items():
            path = f"pool/{name}_1.0_amd64.deb"
            files[path] = data
            paragraphs.append(
                f"Package: {name}\nVersion: 1.0\nFilename: {path}\nSize: {len(data)}\n"
                f"SHA256: {sha256_hex(data)}\nDepends: {self.depends.get(name, '')}\n"
            )
        index = lzma.compress("\n".join(paragraphs).encode())
        inner = "main/binary-amd64/Packages.xz"
        release = (
            "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Test\nSHA256:\n"
            f" {sha256_hex(index)} {len(index)} {inner}\n-----BEGIN PGP SIGNATURE-----\n"
        )
        base = "dists/bookworm"
        return {**files, f"{base}/InRelease": release.encode(), f"{base}/{inner}": index}


class CutStream(httpx.SyncByteStream):
    """A body that breaks off."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self):
        yield self._content
        raise httpx.ReadError("the connection was cut")


@dataclass
class FakeRegistry:
    """A registry in memory that speaks enough of the distribution API to be argued with."""

    auth: str = ""  # "", "basic" or "bearer"
    blobs: dict[str, dict[str, bytes]] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    sessions: dict[str, bytearray] = field(default_factory=dict)
    log: list[tuple[str, str, str]] = field(default_factory=list)
    failures: list[httpx.Response] = field(default_factory=list)
    redirect_blobs_to: str = ""
    lose_sessions: int = 0
    tokens_asked: list[str] = field(default_factory=list)
    cut_patches: int = 0
    """So many chunks break off after half of their bytes were stored."""
    forget_cut_sessions: bool = False
    has_referrers: bool = False
    """Whether it lists what refers to a manifest by itself."""
    cut_downloads: int = 0
    short_downloads: int = 0
    """So many downloads end after half of their bytes, as if that were all."""
    cut_manifests: int = 0
    has_ranges: bool = True
    token_answers: list[httpx.Response] = field(default_factory=list)
    """What the sign-in service says before it gives a token."""
    session_base: str = ""
    """What goes before the path that an upload is to go on at."""

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        request.read()
        path, method = request.url.path, request.method
        self.log.append((method, str(request.url), request.headers.get("authorization", "")))
        if request.url.path == "/token":
            self.tokens_asked.append(str(request.url))
            if self.token_answers:
                return self.token_answers.pop(0)
            return httpx.Response(200, json={"token": "good"})
        if request.url.host == "blobs.example":
            digest = path.removeprefix("/")
            return httpx.Response(200, content=self._find(digest))
        if not self._is_allowed(request):
            challenge = {
                "basic": 'Basic realm="test"',
                "bearer": 'Bearer realm="http://127.0.0.1:5000/token",service="test"',
            }[self.auth]
            return httpx.Response(401, headers={"WWW-Authenticate": challenge})
        if self.failures:
            return self.failures.pop(0)
        if match := re.fullmatch(r"/v2/(.+)/manifests/(.+)", path):
            return self._manifest(request, match[1], match[2])
        if match := re.fullmatch(r"/v2/(.+)/referrers/(.+)", path):
            return self._referrers(match[1], match[2])
        if match := re.fullmatch(r"/v2/(.+)/blobs/uploads/(.*)", path):
            return self._upload(request, match[1], match[2])
        if match := re.fullmatch(r"/v2/(.+)/blobs/(sha256:.+)", path):
            return self._blob(request, match[1], match[2])
        return httpx.Response(404)

    def _is_allowed(self, request: httpx.Request) -> bool:
        wanted = {"": "", "basic": "Basic " + base64.b64encode(b"me:secret").decode()}
        return not self.auth or request.headers.get("authorization") == wanted.get(
            self.auth, "Bearer good"
        )

    def _find(self, digest: str) -> bytes:
        return next(held[digest] for held in self.blobs.values() if digest in held)

    def _manifest(self, request: httpx.Request, repository: str, name: str) -> httpx.Response:
        if request.method == "PUT":
            digest = f"sha256:{sha256_hex(request.content)}"
            entry = (request.headers["content-type"], request.content)
            self.manifests[repository, name] = self.manifests[repository, digest] = entry
            headers = {"Docker-Content-Digest": digest}
            if self.has_referrers and (subject := json.loads(request.content).get("subject")):
                headers["OCI-Subject"] = subject["digest"]
            return httpx.Response(201, headers=headers)
        if (repository, name) not in self.manifests:
            body = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            return httpx.Response(404, json=body)
        media_type, content = self.manifests[repository, name]
        headers = {"Content-Type": media_type}
        if self.cut_manifests:
            self.cut_manifests -= 1
            return httpx.Response(200, stream=CutStream(content[:1]), headers=headers)
        return httpx.Response(200, content=content, headers=headers)

    def _referrers(self, repository: str, digest: str) -> httpx.Response:
        if not self.has_referrers:
            return httpx.Response(404)
        found = []
        for (holder, name), (media_type, content) in self.manifests.items():
            document = json.loads(content)
            if holder != repository or not name.startswith("sha256:"):
                continue
            if (document.get("subject") or {}).get("digest") == digest:
                item = {"mediaType": media_type, "digest": name, "size": len(content)}
                found.append({**item, "artifactType": document["artifactType"]})
        return httpx.Response(200, json={"schemaVersion": 2, "manifests": found})

    def _blob(self, request: httpx.Request, repository: str, digest: str) -> httpx.Response:
        method = request.method
        content = self.blobs.get(repository, {}).get(digest)
        if content is None:
            return httpx.Response(404)
        if method == "GET" and self.redirect_blobs_to:
            return httpx.Response(307, headers={"Location": f"{self.redirect_blobs_to}/{digest}"})
        start = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        status = 200
        if start and self.has_ranges:
            content, status = content[int(start[1]) :], 206
        if method == "GET" and self.cut_downloads:
            self.cut_downloads -= 1
            return httpx.Response(status, stream=CutStream(content[: len(content) // 2]))
        if method == "GET" and self.short_downloads:
            self.short_downloads -= 1
            content = content[: len(content) // 2]
        return httpx.Response(status, content=content if method == "GET" else b"")

    def _upload(self, request: httpx.Request, repository: str, session: str) -> httpx.Response:
        held = self.blobs.setdefault(repository, {})
        digest = request.url.params.get("mount")
        if request.method == "POST":
            source = self.blobs.get(request.url.params.get("from", ""), {})
            if digest and digest in source:
                held[digest] = source[digest]
                return httpx.Response(201)
            name = f"s{len(self.sessions)}"
            self.sessions[name] = bytearray()
            return httpx.Response(202, headers=self._location(repository, name))
        if request.method == "DELETE":
            return httpx.Response(204 if self.sessions.pop(session, None) is not None else 404)
        if request.method == "GET":
            if session not in self.sessions:
                return httpx.Response(404)
            last = max(0, len(self.sessions[session]) - 1)
            headers = {**self._location(repository, session), "Range": f"0-{last}"}
            return httpx.Response(204, headers=headers)
        if self.cut_patches and request.method == "PATCH":
            self.cut_patches -= 1
            self.sessions[session] += request.content[: len(request.content) // 2]
            if self.forget_cut_sessions:
                del self.sessions[session]
            raise httpx.ReadError("the connection was cut")
        if self.lose_sessions and request.method in {"PATCH", "PUT"}:
            self.lose_sessions -= 1
            self.sessions.pop(session, None)
        if session not in self.sessions:
            return httpx.Response(404)
        if request.method == "PATCH":
            first = int(request.headers["content-range"].partition("-")[0])
            if first != len(self.sessions[session]):
                return httpx.Response(416)
        self.sessions[session] += request.content
        if request.method == "PATCH":
            return httpx.Response(202, headers=self._location(repository, session))
        content = bytes(self.sessions.pop(session))
        if f"sha256:{sha256_hex(content)}" != request.url.params["digest"]:
            return httpx.Response(400)
        held[request.url.params["digest"]] = content
        return httpx.Response(201)

    def _location(self, repository: str, session: str) -> dict[str, str]:
        path = f"/v2/{repository}/blobs/uploads/{session}?state=x"
        return {"Location": f"{self.session_base}{path}"}


MODEL = bytes(range(256)) * 40
RECIPE = """
name = "small"
python = "3.11"
base = "debian:bookworm"
entrypoint = ["python3", "/opt/zse/boot.py"]
port = 8000
[env]
ZSE_HOST = "0.0.0.0"
[labels]
title = "small"
[healthcheck]
test = ["CMD", "true"]
interval_seconds = 10
[files]
"opt/zse/boot.py" = "boot.py"
[code]
exclude = ["*"]
[wheels]
requirements = ["demo==1.0"]
[debian]
suite = "bookworm"
packages = ["python3"]
"""


def fill_cache(cache_dir: Path, recipe_folder: Path) -> Path:
    """Put the recipe's wheel where a build looks for fetched ones."""
    wheel = next(recipe_folder.glob("*.whl"))
    target = cache_dir / "downloads" / "wheels" / sha256_hex(wheel.read_bytes()) / wheel.name
    target.parent.mkdir(parents=True)
    target.write_bytes(wheel.read_bytes())
    return cache_dir


PYTHON_PACKAGES = (
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libexpat1", "zlib1g",
)  # fmt: skip


def lock_python(
    recipe_folder: Path,
    cache_dir: Path,
    *,
    architecture: str,
    program: str = sys.executable,
    version: str = "3.11.99",
) -> None:
    """Lock packages for the image's Python and put them where a build looks for fetched ones.

    The loader in them is a script that starts ``program``, which so stands for that Python.
    """
    # It is called as: LOADER --library-path FOLDERS --argv0 PYTHON PYTHON -I ...
    loader = tarfile.TarInfo("./usr/lib64/ld-linux-x86-64.so.2")
    script = f'#!/bin/sh\nshift 5\nexec "{program}" "$@"\n'.encode()
    loader.size, loader.mode = len(script), 0o755
    lines = []
    for name in PYTHON_PACKAGES:
        content = [("./usr/lib/x86_64-linux-gnu/libc.so.6", b""), (loader, script)]
        deb = make_deb(make_tar(content) if name == "libc6" else {f"usr/{name}": name.encode()})
        digest = sha256_hex(deb)
        target = cache_dir / "downloads" / "debian" / f"{digest}.deb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(deb)
        lines.append(
            f'[[package]]\nsuite = "bookworm"\nname = "{name}"\nversion = "{version}-1+x"\n'
            f'archive = "debian"\npath = "pool/{name}.deb"\nsha256 = "{digest}"\n'
            f"size_bytes = {len(deb)}\n"
        )
    (recipe_folder / f"debian.{architecture}.lock").write_text("\n".join(lines))


def make_rootfs(path: Path) -> Path:
    """Write a tar that stands for a base's root file system."""
    path.write_bytes(make_tar([("usr/bin/python3", b"binary")]))
    return path


def read_layer(layout: Path, digest: str) -> bytes:
    return (layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()


def read_json(layout: Path, digest: str) -> dict:
    return json.loads(read_layer(layout, digest))
