"""A file goes to a registry and comes back: whole, in ranges, after cuts, and never changed."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from host_gpu import HostGpu
from loads import start_load

from zse.cli import run
from zse.engine.opening import open_file
from zse.errors import MissingDependencyError, StoreError
from zse.format.reader import ZSEReader
from zse.oci.errors import LayoutError, RegistryError
from zse.oci.weights import transfer
from zse.oci.weights.transfer import push_weights, reference_of
from zse.options import load_options
from zse.quantize.locate import locate_model
from zse.settings import load_settings
from zse.stream.oci import open_oci
from zse.stream.opening import open_remote
from zse.stream.placement import WholeFile


@pytest.fixture(scope="module")
def file():
    return Path(locate_model("tiny", load_settings()))


@pytest.fixture
def settings(tmp_path):
    return replace(load_settings(), cache_dir=tmp_path / "cache")


def push(served, file, settings, chunk_bytes=1 << 20, url=""):
    reference = reference_of(url or served.url)
    auth = settings.registry_auth_file
    return push_weights(
        file, "tiny.zse", reference, auth, report=lambda _: None, chunk_bytes=chunk_bytes
    )


def test_ranges_over_several_layers_are_one_source(served, file, settings):
    push(served, file, settings)
    data, numbers = file.read_bytes(), random.Random(3)
    with closing(open_oci(served.url, settings)) as source:
        assert source.size_bytes == len(data)
        assert len(source.image.pieces) == 5
        for _ in range(40):
            start = numbers.randrange(len(data))
            view = memoryview(bytearray(numbers.randrange(1, min(3 << 20, len(data) - start) + 1)))
            source.read_into(start, view)
            assert view == data[start : start + len(view)]
        with pytest.raises(StoreError):
            source.read_into(len(data) - 1, memoryview(bytearray(2)))


def test_a_device_is_fed_from_layers_without_a_file(served, file, settings):
    push(served, file, settings)
    served.ranges.clear()
    with open_remote(served.url, settings) as reader:
        gpu, whole = HostGpu(), WholeFile(reader.header)
        address = gpu.memory(whole.length_bytes)
        start_load(gpu, reader.source, whole, address).wait()
        start = whole.origin_bytes
        assert gpu.bytes_of(address) == file.read_bytes()[start : start + whole.length_bytes]
    read = sum(last + 1 - first for _, first, last in served.ranges)
    assert read < file.stat().st_size, "no byte is read twice, and zeros not at all"


def test_a_digest_names_the_header_that_is_read_in_ranges(served, file, settings):
    """A registry that keeps the manifest and gives another model's bytes, whole as they are."""
    digest = push(served, file, settings)
    held = served.fake.blobs["team/model"]
    repository = served.url.rsplit(":", 1)[0]
    first = next(d for d, data in held.items() if b"ZSE\0" in data[:5000])
    held[first] = other_header(held[first])
    with pytest.raises(StoreError, match=f"does not begin as its manifest, {digest[:6]}"):
        open_remote(f"{repository}@{digest}", settings)


def other_header(layer: bytes) -> bytes:
    """The layer of a file whose header says something else, with its right digest."""
    start = layer.index(b"ZSE\0")
    length = int.from_bytes(layer[start + 8 : start + 16], "little")
    header = layer[start + 64 : start + 64 + length].replace(
        b'"rms_norm_eps":1e-05', b'"rms_norm_eps":9e-05'
    )
    assert header != layer[start + 64 : start + 64 + length]
    sealed = layer[start : start + 16] + hashlib.sha256(header).digest() + bytes(16) + header
    return layer[:start] + sealed + layer[start + len(sealed) :]


def test_an_image_that_binds_no_bytes_is_fetched_whole_and_not_in_ranges(
    served, file, settings, monkeypatch
):
    documents_of = transfer.documents
    bare = lambda image: documents_of(replace(image, beginning=b""))  # noqa: E731
    monkeypatch.setattr(transfer, "documents", bare)
    push(served, file, settings)
    with pytest.raises(LayoutError, match="cannot be read in ranges"):
        open_remote(served.url, settings)
    with open_file(served.url, load_options(device="cpu"), settings) as reader:
        assert reader.path.read_bytes() == file.read_bytes()


def test_a_cpus_file_is_fetched_once(served, file, settings):
    push(served, file, settings)
    options = load_options(device="cpu")
    for _ in range(2):
        with open_file(served.url, options, settings) as reader:
            assert isinstance(reader, ZSEReader)
            assert reader.path.read_bytes() == file.read_bytes()
        served.ranges.clear()
    with open_file(served.url, options, settings):
        assert served.ranges == []


def test_a_push_that_was_stopped_goes_on_with_what_is_missing(served, file, settings):
    held = served.fake.blobs
    first = push(served, file, settings)
    layers = [digest for digest, data in held["team/model"].items() if len(data) > 5000]
    assert len(layers) == 5
    lost = layers[2:4]
    for digest in lost:
        del held["team/model"][digest]
    served.fake.log.clear()
    assert push(served, file, settings) == first, "the digest follows from the file"
    sent = [url for method, url, _ in served.fake.log if method == "POST"]
    assert len(sent) == 1 + len(lost), "the first asks whether pushing is allowed"


def test_changed_bytes_are_found_and_no_file_is_made(served, file, settings, tmp_path):
    push(served, file, settings)
    served.corrupt = True
    with pytest.raises(StoreError, match="digest"):
        open_file(served.url, load_options(device="cpu"), settings)
    assert not list((tmp_path / "cache" / "models").glob("*.zse"))


def test_a_registry_with_tokens_is_signed_in_to_and_again_when_they_end(
    served, file, settings, monkeypatch
):
    push(served, file, settings)
    monkeypatch.setattr("zse.store.http.retry.backoff_seconds", lambda _: 0.01)
    with closing(open_oci(served.url, settings)) as source:
        served.fake.auth = "bearer"
        asked = []
        monkeypatch.setattr(
            source._registry._sign_in,
            "_authorize",
            lambda scope, challenge, refused: asked.append(challenge) or "Bearer good",
        )
        view = memoryview(bytearray(100))
        source.read_into(0, view)
        assert view == file.read_bytes()[:100]
        assert len(asked) == 1
        assert asked[0].startswith("Bearer")


def test_what_is_not_there_or_no_model_is_said(served, file, settings):
    with pytest.raises(RegistryError, match="404"):
        open_oci(served.url, settings)
    push(served, file, settings)
    manifests = served.fake.manifests
    name = next(name for _, name in manifests if name == "1")
    manifests["team/model", name] = ("application/vnd.oci.image.manifest.v1+json", b'{"layers":[]}')
    with pytest.raises(LayoutError, match="no image of a"):
        open_oci(served.url, settings)


def test_the_commands_push_show_and_pull(served, file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(file, "small.zse")
    assert run(["push", "small.zse", served.url, "--json"]) == 0
    pushed = json.loads(capsys.readouterr().out)
    assert pushed["digest"].startswith("sha256:")
    assert run(["inspect", served.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size_bytes"] == file.stat().st_size
    assert run(["pull", served.url, "-o", "back.zse"]) == 0
    assert Path("back.zse").read_bytes() == file.read_bytes()
    assert run(["pull", served.url]) == 2, "small.zse is there"
    assert run(["pull", served.url, "--force"]) == 0
    assert run(["push", served.url, "s3://a-bucket/key"]) == 2
    pinned = f"oci://{served.host}/team/model@{pushed['digest']}"
    assert run(["pull", pinned, "-o", "pinned.zse"]) == 0
    assert run(["push", "small.zse", pinned]) == 2
    assert run(["pull", "oci://UPPER/x y"]) != 0


def test_where_nothing_speaks_with_registries_that_is_said(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "zse.stream.oci", None)
    monkeypatch.delattr("zse.stream.oci", raising=False)
    for device in ("cpu", "cuda"):
        with pytest.raises(MissingDependencyError, match="registries"):
            open_file("oci://127.0.0.1:1/a:1", load_options(device=device), settings)


@pytest.mark.system
def test_a_real_registry_holds_it_and_gives_ranges(registry, file, settings, tmp_path):
    url = f"oci://{registry}/team/weights:1"
    digest = push_weights(
        file,
        "tiny.zse",
        reference_of(url),
        settings.registry_auth_file,
        report=lambda _: None,
        chunk_bytes=1 << 20,
    )
    with open_remote(f"oci://{registry}/team/weights@{digest}", settings) as reader:
        reader.verify()
    with open_file(url, load_options(device="cpu"), settings) as reader:
        assert reader.path.read_bytes() == file.read_bytes()
