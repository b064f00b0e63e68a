from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
import zstandard
from broken_rules import breaks
from oci_builders import FakeRegistry, make_tar, sha256_hex

from zse.errors import NotFoundError
from zse.oci.errors import BadReferenceError, ImageRule, LayoutError
from zse.oci.image.base import (
    Base,
    check_can_carry,
    layer_from_rootfs,
    parse_base,
    read_base,
    suite_of,
)
from zse.oci.image.source import RegistrySource, open_image
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.layer import Compression
from zse.oci.layout.manifest import (
    MEDIA_TYPE_DOCKER_INDEX,
    MEDIA_TYPE_DOCKER_MANIFEST,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    canonical_json,
    digest_of,
)
from zse.oci.registry.client import Registry
from zse.oci.registry.reference import parse_reference

ROOTFS = make_tar([("usr/bin/python3", b"binary")])


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("debian", "debian", ""),
        ("debian:trixie", "debian", "trixie"),
        ("oci:/x:1", "oci", "/x:1"),
        ("rootfs:x.tar", "rootfs", "x.tar"),
        ("python:3.11-slim", "registry", "python:3.11-slim"),
        ("host.example/debian:12", "registry", "host.example/debian:12"),
    ],
)
def test_bases_are_told_apart(text, kind, value):
    assert (parse_base(text).kind, parse_base(text).value) == (kind, value)


def test_base_without_a_path_is_refused():
    with pytest.raises(BadReferenceError):
        parse_base("oci:")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, zstandard.compress])
def test_rootfs_becomes_the_same_layer_however_it_is_packed(tmp_path, pack):
    (tmp_path / "base.tar").write_bytes(pack(ROOTFS))
    layer = layer_from_rootfs(tmp_path / "base.tar", tmp_path, compression=Compression.NONE)
    assert layer.diff_id == f"sha256:{sha256_hex(ROOTFS)}"


def test_missing_and_broken_rootfs_are_errors(tmp_path):
    with pytest.raises(NotFoundError):
        layer_from_rootfs(tmp_path / "none", tmp_path, compression=Compression.NONE)
    whole = gzip.compress(ROOTFS)
    for broken in (whole[:-9], whole[:20] + bytes(40) + whole[60:]):
        (tmp_path / "bad").write_bytes(broken)
        with pytest.raises(LayoutError, match="decompressed"):
            layer_from_rootfs(tmp_path / "bad", tmp_path, compression=Compression.NONE)


@pytest.mark.parametrize("content", [b"hi\n", ROOTFS[:-1], ROOTFS[:1024], b"x" * 2048])
def test_rootfs_that_is_no_whole_tar_is_refused_and_not_kept(tmp_path, content):
    path, blobs = tmp_path / "rootfs", tmp_path / "blobs"
    path.write_bytes(content)
    with pytest.raises(LayoutError, match="tar file"):
        layer_from_rootfs(path, blobs, compression=Compression.NONE)
    assert list(blobs.iterdir()) == []


def read_layout(place):
    with open_image(f"oci:{place}", auth_file=Path("/none")) as source:
        return read_base(source, platform="linux/amd64", cache=Path("/none"))


def test_folder_that_is_no_layout_is_no_base(tmp_path):
    with pytest.raises(LayoutError):
        read_layout(tmp_path)
    with pytest.raises(NotFoundError, match="none does not exist"):
        read_layout(f"{tmp_path / 'none'}:1")


@pytest.mark.parametrize(
    "manifest",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"layers": [{}], "config": {}}',
        b'{"layers": [], "config": CONFIG}',
    ],
)
def test_manifest_that_is_none_is_an_error_with_words(tmp_path, manifest):
    layout = ImageLayout(tmp_path)
    layout.create()
    content = manifest.replace(b"CONFIG", canonical_json(layout.add("c", b"[]").to_json()))
    layout.add_image(layout.add(MEDIA_TYPE_MANIFEST, content), "1")
    with pytest.raises(BadReferenceError, match="is not an image"):
        read_layout(tmp_path)


def test_base_whose_config_lacks_layers_can_carry_none():
    layers = (Descriptor(media_type="l", digest="d", size_bytes=1),)
    check_can_carry(Base(name="b", layers=layers, config={"rootfs": {"diff_ids": ["d"]}}))
    with pytest.raises(BadReferenceError, match="lists 0 layers, its manifest 1"):
        check_can_carry(Base(name="b", layers=layers))


def test_layer_whose_digest_is_a_path_reaches_no_file(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    registry = Registry(parse_reference("127.0.0.1:5000/base:1"), transport=None)
    escape = Descriptor(media_type="l", digest="sha256:../secret", size_bytes=6)
    with pytest.raises(LayoutError, match="not a sha256 digest"):
        RegistrySource(registry).fetch(escape, tmp_path / "blobs")


def test_docker_image_of_a_registry_is_a_base_and_its_layers_are_not_fetched(tmp_path):
    config = canonical_json({"config": {"Env": ["A=1"]}, "rootfs": {"diff_ids": ["sha256:u"]}})
    manifest = canonical_json(
        {
            "config": {"mediaType": "c", "digest": digest_of(config), "size": len(config)},
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "digest": "sha256:never",
                    "size": 9,
                }
            ],
        }
    )
    platform = {"os": "linux", "architecture": "amd64"}
    item = {
        "mediaType": MEDIA_TYPE_DOCKER_MANIFEST,
        "digest": digest_of(manifest),
        "size": len(manifest),
        "platform": platform,
    }
    index = canonical_json({"manifests": [item]})
    fake = FakeRegistry(
        blobs={"base": {digest_of(config): config}},
        manifests={
            ("base", "1"): (MEDIA_TYPE_DOCKER_INDEX, index),
            ("base", digest_of(manifest)): (MEDIA_TYPE_DOCKER_MANIFEST, manifest),
        },
    )
    registry = Registry(parse_reference("127.0.0.1:5000/base:1"), transport=fake.transport())
    base = read_base(RegistrySource(registry), platform="linux/amd64", cache=tmp_path)
    assert base.digest == digest_of(manifest)
    assert base.config["config"]["Env"] == ["A=1"]
    assert base.layers[0].media_type == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert not any("never" in url for _, url, _ in fake.log)


def test_suite_must_carry_the_python_of_the_wheels():
    assert suite_of("", "bookworm", python="3.11") == "bookworm"
    with breaks(ImageRule.DEBIAN, match=r"Python 3\.13"):
        suite_of("trixie", "bookworm", python="3.11")
    with breaks(ImageRule.DEBIAN, match="not known"):
        suite_of("sid", "bookworm", python="3.11")
