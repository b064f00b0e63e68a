"""Pushes to and pulls from Debian's docker-registry over real connections, good and bad ones."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import oci_registry
import pytest
from faulty_registry import faulty_registry
from oci_builders import sha256_hex
from service_packages import find_command
from token_server import PASSWORD, USER, token_server

from zse.oci.errors import RegistryAuthError, RegistryError
from zse.oci.image.inspect import inspect_image
from zse.oci.image.source import RegistrySource, open_image
from zse.oci.image.verify import Expectations, verify_image
from zse.oci.layout.layer import Compression
from zse.oci.layout.manifest import Descriptor
from zse.oci.registry import upload
from zse.oci.registry.client import Registry, open_registry
from zse.oci.registry.reference import parse_reference
from zse.oci.registry.upload import Upload, push_blob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from faulty_registry import Faults
    from token_server import TokenServer

pytestmark = pytest.mark.system

BLOB = bytes(range(256)) * 4000
DESCRIPTOR = Descriptor(
    media_type="application/octet-stream",
    digest=f"sha256:{sha256_hex(BLOB)}",
    size_bytes=len(BLOB),
)
# bcrypt of "open sesame", with the least work that bcrypt knows.
HTPASSWD = "me:$2a$04$H5WvvoswY1H.0F6BclypZ.hVZdZlSA6LurnvPHJlTR0XfVwK2eJO.\n"


@pytest.fixture
def faulty(registry: str) -> Iterator[tuple[str, Faults]]:
    with faulty_registry(registry) as (address, faults):
        yield address, faults


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    path = tmp_path / "blob"
    path.write_bytes(BLOB)
    return path


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(upload, "WHOLE_MAX_BYTES", 10)
    monkeypatch.setattr(upload, "CHUNK_BYTES", 200_000)


@pytest.fixture
def login(tmp_path):
    """Write docker's config.json for a host."""

    def login(host: str, password: str = PASSWORD) -> Path:
        path = tmp_path / "config.json"
        auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
        path.write_text(json.dumps({"auths": {host: {"auth": auth}}}))
        return path

    return login


def open_at(address: str, repository: str = "faults/app") -> Registry:
    return Registry(parse_reference(f"{address}/{repository}:1"), sleep=lambda _: None)


def tool(*command: str) -> str:
    words = [find_command(command[0]), *command[1:]]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- images --------------------------------------------------------------------------------------


def test_image_comes_back_byte_for_byte_and_a_second_push_sends_nothing(
    build, faulty, project, tmp_path
):
    address, faults = faulty
    name = f"{address}/real/whole:1"
    built = build(name=name, output="", is_pushed=True)
    raw = tool("skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{name}")
    assert f"sha256:{sha256_hex(raw.encode())}" == built.digest
    sent_bytes, faults.seen[:] = faults.upload_bytes, []
    build(name=name, output="", is_pushed=True)
    assert faults.upload_bytes == sent_bytes
    assert {"POST", "PATCH"}.isdisjoint(faults.methods())
    with open_image(name, auth_file=tmp_path / "none") as source:
        faults.seen.clear()
        report = inspect_image(source)
        fetched = " ".join(path for _, path in faults.seen)
        assert not any(layer.digest in fetched for layer in built.layers)
        assert report.platforms[0].sbom["pypi"] == 2
        assert verify_image(source, Expectations(), lambda _: None).problems == []


def test_skopeo_copies_it_and_umoci_unpacks_it(build, registry, tmp_path):
    name = f"{registry}/real/gzip:1"
    built = build(name=name, output="", is_pushed=True, compression=Compression.GZIP)
    layout = tmp_path / "layout"
    keep = ["--preserve-digests", "--dest-oci-accept-uncompressed-layers"]
    tool("skopeo", "copy", "-q", *keep, "--src-tls-verify=false",
         f"docker://{name}", f"oci:{layout}:1")  # fmt: skip
    raw = tool("skopeo", "inspect", "--raw", f"oci:{layout}:1")
    assert f"sha256:{sha256_hex(raw.encode())}" == built.digest
    tool("umoci", "unpack", "--rootless", "--image", f"{layout}:1", str(tmp_path / "bundle"))
    rootfs = tmp_path / "bundle" / "rootfs"
    assert (rootfs / "models" / "model.zse").stat().st_size == 256 * 40
    assert (rootfs / "opt" / "zse" / "site-packages" / "demo" / "__init__.py").is_file()


def test_skopeo_reads_the_layout_and_the_file_by_their_tag(build, project):
    built = build(output=f"oci:{project / 'out'}")
    build(output=f"tar:{project / 'out.tar'}")
    for place in (f"oci:{project / 'out'}:1", f"oci-archive:{project / 'out.tar'}:1"):
        raw = tool("skopeo", "inspect", "--raw", place)
        assert f"sha256:{sha256_hex(raw.encode())}" == built.digest


def test_half_of_the_blobs_are_there_and_only_the_others_are_sent(build, faulty, project):
    address, _ = faulty
    name = f"{address}/real/half:1"
    first = build(output=f"oci:{project / 'out'}", name="local:1")
    with open_at(address, "real/half") as registry:
        for layer in first.layers[:2]:
            path = project / "out" / "blobs" / "sha256" / layer.digest.removeprefix("sha256:")
            item = Descriptor(media_type="x", digest=layer.digest, size_bytes=layer.size_bytes)
            push_blob(registry, item, lambda path=path: path)
    said: list[str] = []
    build(name=name, output="", is_pushed=True, report=said.append)
    states = [line.split()[0] for line in said if line.split()[0] in {"exists", "sent"}]
    assert states.count("exists") == 2
    assert states.count("sent") == len(first.layers) - 2 + 4  # config, "{}" and two documents


def test_layers_of_a_base_in_the_same_registry_are_mounted(build, faulty):
    address, _ = faulty
    base = build(name=f"{address}/real/base:1", output="", is_pushed=True)
    said: list[str] = []
    build(
        name=f"{address}/other/place:1",
        base=f"{address}/real/base@{base.digest}",
        output="",
        is_pushed=True,
        report=said.append,
    )
    mounted = {line.split()[1] for line in said if line.startswith("mounted")}
    assert {layer.digest[:19] for layer in base.layers[:2]} <= mounted


# --- faults --------------------------------------------------------------------------------------


def test_upload_outlives_cut_connections(faulty, blob, small_chunks):
    address, faults = faulty
    faults.cut_uploads_after = [50_000, 100_000]
    with open_at(address) as registry:
        how = push_blob(registry, DESCRIPTOR, lambda: blob, sleep=lambda _: None)
        assert how is Upload.SENT
        assert registry.has_blob(DESCRIPTOR.digest)


def test_download_outlives_cut_connections(faulty, blob, tmp_path):
    address, faults = faulty
    with open_at(address, "faults/down") as registry:
        push_blob(registry, DESCRIPTOR, lambda: blob)
        faults.cut_downloads_after = [300_000, 300_000]
        path = RegistrySource(registry).fetch(DESCRIPTOR, tmp_path / "pulled")
    assert path.read_bytes() == BLOB
    assert faults.cut_downloads_after == []


def test_registry_that_answers_500_twice_gets_the_blob(faulty, blob):
    address, faults = faulty
    faults.answers = [(500, {}), (500, {})]
    with open_at(address, "faults/five") as registry:
        assert push_blob(registry, DESCRIPTOR, lambda: blob) is Upload.SENT


def test_busy_registry_is_waited_for(faulty, blob):
    address, faults = faulty
    faults.answers = [(429, {"Retry-After": "3"}), (503, {"Retry-After": "2"})]
    waits: list[float] = []
    reference = parse_reference(f"{address}/faults/busy:1")
    with Registry(reference, sleep=waits.append) as registry:
        assert push_blob(registry, DESCRIPTOR, lambda: blob) is Upload.SENT
    assert waits == [3.0, 2.0]


@pytest.mark.slow
def test_upload_of_a_large_blob_takes_little_memory(registry, tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.truncate(300 << 20)
    digest = subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True)
    child = f"""
import resource, sys
from pathlib import Path
from zse.oci.layout.manifest import Descriptor
from zse.oci.registry.reference import parse_reference
from zse.oci.registry.client import Registry, open_registry
from zse.oci.registry.upload import push_blob
path = Path({str(path)!r})
item = Descriptor(media_type="x", digest="sha256:{digest.stdout.split()[0]}", size_bytes=300 << 20)
with Registry(parse_reference("{registry}/real/large:1")) as registry:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    push_blob(registry, item, lambda: path)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", child], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 40 << 10  # KiB


# --- signing in ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(tmp_path_factory) -> Iterator[str]:
    """A registry that wants a user and a password."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "htpasswd").write_text(HTPASSWD)
    auth = f"auth:\n  htpasswd:\n    realm: test\n    path: {folder / 'htpasswd'}\n"
    with oci_registry.running(folder / "server", auth=auth) as address:
        yield address


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Iterator[tuple[str, TokenServer]]:
    """A registry that wants tokens, and the service that gives them."""
    folder = tmp_path_factory.mktemp("tokens")
    with (
        token_server(folder / "service") as service,
        oci_registry.running(folder / "server", auth=service.registry_auth()) as address,
    ):
        yield address, service


def test_user_and_password_of_dockers_config_are_used(build, locked, login):
    build(name=f"{locked}/team/app:1", output="", is_pushed=True, auth_file=login(locked))
    with open_image(f"{locked}/team/app:1", auth_file=login(locked)) as source:
        assert verify_image(source, Expectations(), lambda _: None).problems == []


def test_wrong_or_missing_password_is_an_error_that_says_so(build, locked, login, tmp_path):
    options = {"name": f"{locked}/team/no:1", "output": "", "is_pushed": True}
    with pytest.raises(RegistryAuthError, match="refused the stored credentials"):
        build(**options, auth_file=login(locked, "wrong"))
    with pytest.raises(RegistryAuthError, match="wants a user and a password"):
        build(**options, auth_file=tmp_path / "none")


def test_a_push_is_tried_before_anything_is_built_and_leaves_nothing(
    locked, tokens, login, tmp_path
):
    for address in (locked, tokens[0]):
        reference = parse_reference(f"{address}/team/tried:1")
        for file in (tmp_path / "none", login(address, "wrong")):
            with open_registry(reference, file) as registry, pytest.raises(RegistryAuthError):
                registry.check_push()
        with open_registry(reference, login(address)) as registry:
            registry.check_push()
            with pytest.raises(RegistryError, match="404"):
                registry.manifest("1")


def test_tokens_are_asked_for_and_serve_for_pushes_and_mounts(build, tokens, login):
    address, service = tokens
    file = login(address)
    base = build(name=f"{address}/team/base:1", output="", is_pushed=True, auth_file=file)
    said: list[str] = []
    service.scopes.clear()
    build(
        name=f"{address}/team/app:1",
        base=f"{address}/team/base:1",
        output="",
        is_pushed=True,
        auth_file=file,
        report=said.append,
    )
    pushes = [scopes for scopes in service.scopes if "repository:team/app:pull,push" in scopes]
    assert pushes
    assert all("repository:team/base:pull" in scopes for scopes in pushes)
    mounted = [line for line in said if line.startswith("mounted")]
    assert len(mounted) >= len(base.layers) - 1


def test_sign_in_service_that_refuses_is_an_error(build, tokens, login):
    address, _ = tokens
    with pytest.raises(RegistryAuthError, match="gave no token"):
        build(
            name=f"{address}/team/no:1",
            output="",
            is_pushed=True,
            auth_file=login(address, "wrong"),
        )


def test_token_that_runs_out_during_an_upload_is_replaced(tokens, blob, small_chunks, login):
    address, service = tokens
    from zse.oci.registry.credentials import find_credentials

    credentials = find_credentials(address, login(address))
    reference = parse_reference(f"{address}/team/expiry:1")
    with Registry(replace(reference), credentials, sleep=lambda _: None) as registry:

        def spoil(done_bytes: int) -> None:
            held = registry._sign_in._authorization
            held.update(dict.fromkeys(held, "Bearer stale"))

        assert push_blob(registry, DESCRIPTOR, lambda: blob, progress=spoil) is Upload.SENT
    assert len(service.scopes) > 2
