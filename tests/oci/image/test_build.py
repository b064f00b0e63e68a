from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from oci_builders import MODEL, FakeRegistry, fill_cache, read_json, read_layer

from zse.errors import NotFoundError, UsageError
from zse.oci.image.options import ModelMode
from zse.oci.image.source import open_image, platform_manifests
from zse.oci.layout.layer import Compression
from zse.oci.registry import client
from zse.oci.registry.client import Registry
from zse.store.overwrite import WouldReplaceError


def config_of(layout) -> dict:
    with open_image(f"oci:{layout}:1", auth_file=Path("/none")) as source:
        return dict(platform_manifests(source)[1][0].config)


def test_image_is_a_layout_with_all_its_blobs(build, project):
    built = build()
    manifest = read_json(project / "out", built.digest)
    assert [layer["digest"] for layer in manifest["layers"]] == [x.digest for x in built.layers]
    for item in [manifest["config"], *manifest["layers"]]:
        assert len(read_layer(project / "out", item["digest"])) == item["size"]


def test_same_inputs_give_the_same_digest_from_any_folder_umask_and_empty_cache(
    build, project, recipe_files, monkeypatch
):
    digests = set()
    for index, umask in enumerate((0o022, 0o077)):
        work = project / f"work{index}"
        work.mkdir()
        monkeypatch.chdir(work)
        cache = fill_cache(work / "cache", recipe_files)
        before = os.umask(umask)
        try:
            built = build(cache_dir=cache, output=f"oci:out{index}", is_cached=False)
        finally:
            os.umask(before)
        digests.add(built.digest)
    assert len(digests) == 1


def test_cached_build_gives_the_digest_of_a_fresh_one(build):
    assert build().digest == build().digest == build(is_cached=False).digest


@pytest.mark.parametrize("change", ["model", "code", "compression", "epoch"])
def test_changed_input_gives_another_digest(build, project, change):
    first = build().digest
    options = {}
    if change == "model":
        (project / "model.zse").write_bytes(MODEL[::-1])
    elif change == "code":
        (project / "recipe" / "boot.py").write_text("print('other')\n")
    elif change == "compression":
        options["compression"] = Compression.GZIP
    else:
        options["epoch_seconds"] = 1
    assert build(**options).digest != first


def test_model_lies_plain_and_page_aligned_in_its_layer(build, project):
    built = build()
    layer = built.layers[-1]
    assert layer.digest == layer.diff_id
    data = read_layer(project / "out", layer.digest)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.getmember("models/model.zse")
    assert member.offset_data % 4096 == 0
    assert data[member.offset_data : member.offset_data + member.size] == MODEL
    assert built.model_size_bytes == layer.size_bytes


def test_config_says_how_to_start(build, project):
    build()
    config = config_of(project / "out")["config"]
    assert config["Entrypoint"] == ["python3", "/opt/zse/boot.py"]
    assert "ZSE_MODEL=/models/model.zse" in config["Env"]
    assert config["User"] == "65532:65532"
    assert config["Healthcheck"]["Interval"] == 10_000_000_000


def test_volume_image_holds_no_model(build, project):
    built = build(model_mode=ModelMode.VOLUME, model=None)
    assert built.model_size_bytes == 0
    assert config_of(project / "out")["config"]["Volumes"] == {"/models": {}}


def test_url_image_names_the_address(build, project):
    build(model_mode=ModelMode.URL, model=None, model_url="s3://bucket/m.zse")
    assert "ZSE_MODEL=s3://bucket/m.zse" in config_of(project / "out")["config"]["Env"]


@pytest.mark.parametrize("url", ["", "m.zse", "file:///m.zse", "gs://b/m.zse", "s3://bucket/"])
def test_url_image_without_an_address_is_refused_before_anything_is_built(build, project, url):
    with pytest.raises(UsageError):
        build(model_mode=ModelMode.URL, model=None, model_url=url)
    assert not (project / "out").exists()


def test_signature_of_an_address_is_in_no_statement(build, project):
    url = "https://models.example/m.zse?signature=secret-word"
    built = build(model_mode=ModelMode.URL, model=None, model_url=url)
    config = read_json(project / "out", built.digest)["config"]["digest"]
    holding = [
        path.name
        for path in (project / "out" / "blobs" / "sha256").iterdir()
        if b"secret-word" in path.read_bytes()
    ]
    assert holding == [config.removeprefix("sha256:")]


def test_time_that_no_document_holds_is_refused(build):
    with pytest.raises(UsageError, match="no time"):
        build(epoch_seconds=10**15)


def test_name_with_a_digest_is_refused(build):
    with pytest.raises(UsageError, match="holds a digest"):
        build(name=f"zse@sha256:{'0' * 64}")


def test_layout_can_be_the_base_of_another_image(build, project):
    first = build()
    second = build(base=f"oci:{project / 'out'}:1", output=f"oci:{project / 'two'}")
    manifest = read_json(project / "two", second.digest)
    assert [x["digest"] for x in manifest["layers"]][: len(first.layers)] == [
        x.digest for x in first.layers
    ]
    assert manifest["annotations"]["org.opencontainers.image.base.digest"] == first.digest
    assert len(config_of(project / "two")["rootfs"]["diff_ids"]) == len(manifest["layers"])


def test_tar_output_holds_the_same_image(build, project):
    built = build(output=f"tar:{project / 'image.tar'}")
    assert built.digest == build().digest
    with tarfile.open(project / "image.tar") as archive:
        assert f"blobs/sha256/{built.digest.removeprefix('sha256:')}" in archive.getnames()


def test_pushed_image_is_whole_in_the_registry(build, project, monkeypatch):
    fake = FakeRegistry()

    def connect(reference, credentials, **options):
        return Registry(reference, credentials, transport=fake.transport(), **options)

    monkeypatch.setattr(client, "Registry", connect)
    built = build(
        name="127.0.0.1:5000/team/zse:2", output="", is_pushed=True, auth_file=project / "none"
    )
    assert fake.manifests["team/zse", "2"] == fake.manifests["team/zse", built.digest]
    assert {layer.digest for layer in built.layers} <= set(fake.blobs["team/zse"])
    fake.log.clear()
    build(name="127.0.0.1:5000/team/zse:2", output="", is_pushed=True, auth_file=project / "none")
    assert {"POST", "PATCH"}.isdisjoint(method for method, _, _ in fake.log)


def test_scratch_folders_are_removed(build, project):
    build(output=f"tar:{project / 'image.tar'}")
    assert {path.name for path in (project / "cache").iterdir()} == {"downloads", "layers"}


def test_an_image_is_not_written_over_something_else(build, project):
    archive, folder = project / "image.tar", project / "papers"
    archive.write_text("mine")
    folder.mkdir()
    (folder / "letter").write_text("mine")
    for output in (f"tar:{archive}", f"oci:{folder}", f"oci:{archive}"):
        with pytest.raises(WouldReplaceError):
            build(output=output)
    assert archive.read_text() == "mine"
    assert [path.name for path in folder.iterdir()] == ["letter"]
    build(output=f"tar:{archive}", is_forced=True)
    assert tarfile.is_tarfile(archive)


def test_image_that_would_go_nowhere_is_refused(build):
    with pytest.raises(UsageError, match="nowhere"):
        build(output="")


@pytest.mark.parametrize("output", ["dir", "zip:x", "oci:"])
def test_unknown_output_is_refused(build, output):
    with pytest.raises(UsageError, match="not understood"):
        build(output=output)


def test_missing_model_is_refused(build, project):
    with pytest.raises(NotFoundError, match=r"none\.zse"):
        build(model=project / "none.zse")
