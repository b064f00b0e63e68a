from __future__ import annotations

import gzip
import json
import tarfile
from itertools import product
from pathlib import Path

import pytest
from oci_builders import FakeRegistry, make_tar, read_json

from zse.errors import NotFoundError
from zse.oci.errors import BadReferenceError, LayoutError, RegistryError
from zse.oci.image.base import parse_base, read_base
from zse.oci.image.inspect import inspect_image
from zse.oci.image.source import open_image
from zse.oci.image.verify import Expectations, verify_image
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.layer import Compression
from zse.oci.layout.manifest import MEDIA_TYPE_MANIFEST, canonical_json
from zse.oci.registry import client
from zse.oci.registry.client import Registry
from zse.oci.statements.attestation import MEDIA_TYPE_INTOTO, MEDIA_TYPE_SPDX

REFERENCE = "127.0.0.1:5000/team/zse:2"


@pytest.fixture
def check(project):
    def check(reference: str = "", **expected):
        with open_image(reference or f"oci:{project / 'out'}", auth_file=project / "no") as source:
            return verify_image(source, Expectations(**expected), lambda _: None)

    return check


@pytest.fixture
def look(project):
    def look(reference: str):
        with open_image(reference, auth_file=project / "no") as source:
            return inspect_image(source)

    return look


@pytest.fixture
def fake(monkeypatch):
    fake = FakeRegistry()

    def connect(reference, credentials, **options):
        return Registry(reference, credentials, transport=fake.transport(), **options)

    monkeypatch.setattr(client, "Registry", connect)
    return fake


@pytest.mark.parametrize("compression", list(Compression))
def test_image_that_was_not_touched_agrees(build, check, compression):
    built = build(compression=compression)
    found = check()
    assert (found.digest, found.problems) == (built.digest, [])
    assert found.checked_blobs == len(built.layers)
    assert found.checked_bytes == sum(layer.size_bytes for layer in built.layers)


def test_changed_layer_is_named(build, check, project):
    built = build()
    path = ImageLayout(project / "out").blob_path(built.layers[-1].digest)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert [built.layers[-1].digest in problem for problem in check().problems] == [True]


def test_missing_and_cut_layers_are_named(build, check, project):
    built = build()
    layout = ImageLayout(project / "out")
    layout.blob_path(built.layers[0].digest).unlink()
    model = layout.blob_path(built.layers[-1].digest)
    data = model.read_bytes()
    model.unlink()
    model.write_bytes(data[:-1])
    problems = check().problems
    assert "lacks" in problems[0]
    assert "bytes, the manifest says" in problems[1]


def test_config_that_lists_other_contents_is_named(build, check, project):
    built = build()
    layout = ImageLayout(project / "out")
    manifest = read_json(project / "out", built.digest)
    config = read_json(project / "out", manifest["config"]["digest"])
    config["rootfs"]["diff_ids"][0] = "sha256:" + "0" * 64
    content = canonical_json(config)
    manifest["config"] |= layout.add(manifest["config"]["mediaType"], content).to_json()
    listed = layout.add(manifest["mediaType"], canonical_json(manifest))
    index = json.loads((project / "out" / "index.json").read_bytes())
    index["manifests"] = [listed.to_json()]
    (project / "out" / "index.json").write_bytes(canonical_json(index))
    assert "unpacks to" in check().problems[0]


def test_document_about_another_image_is_named(build, check, project):
    build()
    (project / "model.zse").write_bytes(b"other")
    second = build(name="zse:2")
    index_path = project / "out" / "index.json"
    index = json.loads(index_path.read_bytes())
    layout = ImageLayout(project / "out")
    for item in index["manifests"]:
        manifest = read_json(project / "out", item["digest"])
        subject = manifest.get("subject")
        if subject and subject["digest"] != second.digest:  # of the first image: claim it
            subject["digest"] = second.digest
            content = canonical_json(manifest)
            item |= layout.add(item["mediaType"], content).to_json()
    index["manifests"] = [
        item
        for item in index["manifests"]
        if (item.get("annotations") or {}).get("org.opencontainers.image.ref.name") != "1"
    ]
    index_path.write_bytes(canonical_json(index))
    problems = check(f"oci:{project / 'out'}:2").problems
    assert any("does not describe" in problem or "not about" in problem for problem in problems)


def test_dependencies_are_held_against_the_locks(build, check, project):
    build()
    locks = project / "recipe"
    (locks / "debian.amd64.lock").write_text("")
    assert check(locks=locks).problems == []
    lock = locks / "wheels.amd64.lock"
    text = lock.read_text()
    lock.write_text(text.replace("1.0", "1.1"))
    assert "demo is 1.0" in check(locks=locks).problems[0]
    lock.write_text(text.replace('name = "demo"', 'name = "other"'))
    problems = check(locks=locks).problems
    assert "other of wheels.amd64.lock is absent" in problems[0]
    assert "demo 1.0 is not in wheels.amd64.lock" in problems[1]


def test_image_without_documents_cannot_be_held_against_locks(build, check, project):
    build(is_attested=False)
    assert "no bill of materials" in check(locks=project / "recipe").problems[0]


def test_base_is_held_against_its_digest_and_layers(build, check, project):
    first = build()
    build(base=f"oci:{project / 'out'}", output=f"oci:{project / 'two'}")
    two = f"oci:{project / 'two'}"
    layers = {first.digest: tuple(layer.digest for layer in first.layers)}
    assert check(two, base=(first.digest,), base_layers=layers).problems == []
    assert "expected sha256:x" in check(two, base=("sha256:x",)).problems[0]
    moved = {first.digest: layers[first.digest][::-1]}
    assert "does not begin" in check(two, base=(first.digest,), base_layers=moved).problems[0]


@pytest.mark.parametrize("output", ["oci:{}", "tar:{}"])
def test_description_is_the_same_from_a_folder_and_a_file(build, look, project, output):
    place = output.format(project / "image")
    built = build(output=place)
    report = look(place)
    platform = report.platforms[0]
    assert report.digest == built.digest
    assert platform.size_bytes == built.size_bytes
    assert [layer.comment for layer in platform.layers] == [x.comment for x in built.layers]
    assert platform.entrypoint == ("python3", "/opt/zse/boot.py")
    assert platform.labels["dev.zse.recipe"] == "small"
    assert platform.sbom == {"generic": 1, "other": 1, "pypi": 2}
    assert {s.artifact_type for s in platform.statements} == {MEDIA_TYPE_SPDX, MEDIA_TYPE_INTOTO}


def test_layout_or_file_that_is_there_needs_no_word_before_it(build, look, project, monkeypatch):
    built = build()
    build(output=f"tar:{project / 'image.tar'}")
    monkeypatch.chdir(project)
    for name in ("out", "./out", "out:1", str(project / "out"), "image.tar", "image.tar:1"):
        assert look(name).digest == built.digest
    with open_image(f"oci:{parse_base('out').value}", auth_file=Path("/none")) as source:
        base = read_base(source, platform="linux/amd64", cache=project)
    assert base.digest == built.digest


def test_folder_that_is_no_layout_does_not_hide_a_reference(look, fake, project, monkeypatch):
    monkeypatch.chdir(project)
    (project / "team" / "zse").mkdir(parents=True)
    with pytest.raises(RegistryError, match="docker"):
        look("team/zse")


def test_image_in_a_file_is_checked_too(build, check, project):
    build(output=f"tar:{project / 'image.tar'}")
    assert check(f"tar:{project / 'image.tar'}").problems == []
    assert check(f"tar:{project / 'image.tar'}:1").problems == []


@pytest.mark.parametrize("has_referrers", [True, False])
def test_registry_is_described_without_fetching_layers(build, look, check, fake, has_referrers):
    fake.has_referrers = has_referrers
    built = build(name=REFERENCE, output="", is_pushed=True)
    fake.log.clear()
    report = look(REFERENCE)
    assert report.platforms[0].sbom["pypi"] == 2
    asked = " ".join(url for _, url, _ in fake.log)
    assert not any(layer.digest in asked for layer in built.layers)
    assert check(REFERENCE).problems == []


def test_what_is_no_image_is_refused(look, project):
    (project / "not.tar").write_bytes(b"nothing")
    with pytest.raises(LayoutError, match="not a tar file"):
        look(f"tar:{project / 'not.tar'}")
    with pytest.raises(LayoutError, match="not an OCI image layout"):
        look(f"oci:{project}")
    with pytest.raises(NotFoundError):
        look("oci:/nowhere")


@pytest.mark.parametrize("kind", ["folder", "compressed", "cut", "empty", "link"])
def test_file_that_is_no_archive_is_an_error_with_words(look, project, kind):
    path = project / "broken.tar"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        link = tarfile.TarInfo("index.json")
        link.type, link.linkname = tarfile.SYMTYPE, "elsewhere"
        path.write_bytes(make_tar([link]))
    else:
        data = make_tar([("index.json", bytes(9000))])
        contents = {"compressed": gzip.compress(data), "cut": data[:3000], "empty": b""}
        path.write_bytes(contents[kind])
    with pytest.raises(LayoutError, match=r"broken\.tar"):
        look(f"tar:{path}")


def test_place_without_a_path_is_an_error_with_words(look):
    with pytest.raises(BadReferenceError, match="names no path"):
        look("oci:")


@pytest.mark.parametrize(
    "changes",
    [{"layers": [{}]}, {"layers": 7}, {"config": {}}, {"config": "x"}, {"layers": None}],
)
def test_manifest_that_is_none_is_an_error_with_words(build, look, project, changes):
    layout = ImageLayout(project / "out")
    content = canonical_json({**read_json(project / "out", build().digest), **changes})
    layout.add_image(layout.add(MEDIA_TYPE_MANIFEST, content), "broken")
    with pytest.raises(LayoutError, match="is not an image"):
        look(f"oci:{project / 'out'}:broken")


def test_config_of_another_form_is_an_error_with_words(build, look, check, project):
    whole = read_json(project / "out", build().digest)
    layout = ImageLayout(project / "out")
    configs = [
        {"config": {"Labels": ["a"]}},
        {"config": {"Env": [1]}},
        {"config": {"Entrypoint": "python3"}},
        {"rootfs": {"diff_ids": 3}},
        {"history": ["made"]},
        ["no object"],
    ]
    for config in configs:
        stored = layout.add("application/vnd.oci.image.config.v1+json", canonical_json(config))
        manifest = canonical_json({**whole, "config": stored.to_json()})
        layout.add_image(layout.add(MEDIA_TYPE_MANIFEST, manifest), "broken")
        for read in (look, check):
            with pytest.raises(LayoutError, match="is not an image"):
                read(f"oci:{project / 'out'}:broken")


def test_statement_of_another_form_is_a_problem_and_ends_nothing(build, check, project):
    build()
    layout = ImageLayout(project / "out")
    index_path = project / "out" / "index.json"
    documents = [{"creationInfo": 7}, {"predicate": "p"}, {"creationInfo": {"creators": 3}}, 7]
    for kind, document in product([MEDIA_TYPE_SPDX, MEDIA_TYPE_INTOTO], documents):
        index = json.loads(index_path.read_bytes())
        for item in index["manifests"]:
            if item.get("artifactType") == kind:
                manifest = read_json(project / "out", item["digest"])
                manifest["layers"] = [layout.add(kind, canonical_json(document)).to_json()]
                item |= layout.add(item["mediaType"], canonical_json(manifest)).to_json()
        index_path.write_bytes(canonical_json(index))
        found = check()
        assert found.checked_blobs > 0
        assert any(kind in problem for problem in found.problems)


def test_index_of_another_form_is_an_error_with_words(build, look, project):
    build()
    one = {"mediaType": "m", "digest": "d", "size": 1}
    items = [{**one, "platform": ["linux"]}, {**one, "size": float("inf")}, 7]
    indexes = [json.dumps({"manifests": [item]}) for item in items]
    for text in (*indexes, "[" * 100_000):
        (project / "out" / "index.json").write_text(text)
        with pytest.raises(LayoutError, match="is no index"):
            look(f"oci:{project / 'out'}")
