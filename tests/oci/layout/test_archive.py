"""A tar file that podman, docker, skopeo and containerd load, and that zse still checks whole."""

from __future__ import annotations

import json
import subprocess
import tarfile
import tempfile

import pytest
from service_packages import find_command

from zse.oci.errors import LayoutError
from zse.oci.image.inspect import inspect_image
from zse.oci.image.source import open_image
from zse.oci.image.verify import Expectations, verify_image
from zse.oci.layout.archive import write_archive
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.index import choose_image
from zse.oci.layout.layer import Compression
from zse.oci.registry.reference import parse_reference
from zse.oci.statements.attestation import MEDIA_TYPE_INTOTO, MEDIA_TYPE_SPDX

NAME = "models.example/team/llm:7b"


@pytest.fixture
def archive(build, project):
    """The small image as a tar file, and its digest."""
    built = build(name=NAME, output=f"tar:{project / 'image.tar'}")
    return project / "image.tar", built.digest


def documents(path) -> dict:
    with tarfile.open(path) as archive:
        return {
            name: json.load(archive.extractfile(name)) for name in ("index.json", "manifest.json")
        }


def test_index_lists_the_image_alone_under_its_whole_name(archive):
    path, digest = archive
    (listed,) = documents(path)["index.json"]["manifests"]
    assert listed["digest"] == digest
    assert listed["annotations"]["io.containerd.image.name"] == NAME
    assert listed["annotations"]["org.opencontainers.image.ref.name"] == "7b"


def test_docker_finds_config_layers_and_name(archive):
    path, digest = archive
    with tarfile.open(path) as tar:
        blob = tar.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
        manifest = json.load(blob)
        members = set(tar.getnames())
    (docker,) = documents(path)["manifest.json"]
    wanted = [item["digest"].replace(":", "/") for item in manifest["layers"]]
    assert docker["RepoTags"] == [NAME]
    assert docker["Layers"] == [f"blobs/{name}" for name in wanted]
    assert {docker["Config"], *docker["Layers"]} <= members


def test_what_is_stated_about_the_image_is_found_in_the_file(archive, project):
    path, _ = archive
    with open_image(f"tar:{path}", auth_file=project / "none") as source:
        (platform,) = inspect_image(source).platforms
        found = verify_image(source, Expectations(), lambda _: None)
    assert {s.artifact_type for s in platform.statements} == {MEDIA_TYPE_SPDX, MEDIA_TYPE_INTOTO}
    assert found.problems == []


def test_file_is_the_same_each_time(archive, build, project):
    path, _ = archive
    build(name=NAME, output=f"tar:{project / 'again.tar'}")
    assert path.read_bytes() == (project / "again.tar").read_bytes()


def test_archive_that_cannot_be_finished_leaves_nothing(build, project):
    build()
    layout, target = ImageLayout.open(project / "out"), project / "image" / "a.tar"
    top, name = choose_image(layout.manifests(), "1", place="oci:out"), parse_reference(NAME)
    with pytest.raises(FileNotFoundError):
        write_archive(layout, top, [top], ["sha256:" + "0" * 64], name, target)
    assert list(target.parent.iterdir()) == []


def test_manifest_that_is_none_cannot_be_archived(tmp_path, build, project):
    built = build()
    layout = ImageLayout.open(project / "out")
    top, name = choose_image(layout.manifests(), "1", place="oci:out"), parse_reference(NAME)
    blob = next(layer for layer in built.layers if layer.digest == layer.diff_id)
    broken = top.__class__(media_type="x", digest=blob.digest, size_bytes=1)
    with pytest.raises(LayoutError, match="not that of an image"):
        write_archive(layout, top, [broken], [], name, tmp_path / "a.tar")


@pytest.mark.system
@pytest.mark.parametrize("compression", list(Compression))
def test_podman_loads_it_under_its_own_name(build, project, compression):
    built = build(name=NAME, output=f"tar:{project / 'i.tar'}", compression=compression)
    with tempfile.TemporaryDirectory() as store:  # podman wants a path of at most 50 characters
        podman = [
            find_command("podman"), f"--root={store}/root", f"--runroot={store}/run",
            "--storage-driver=vfs", "--events-backend=none", "--cgroup-manager=cgroupfs",
        ]  # fmt: skip
        done = subprocess.run(
            [*podman, "load", "-i", project / "i.tar"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == NAME
        said = subprocess.run(
            [*podman, "image", "inspect", NAME], capture_output=True, text=True, check=True
        ).stdout
    (image,) = json.loads(said)
    assert image["RootFS"]["Layers"] == [layer.diff_id for layer in built.layers]


@pytest.mark.system
def test_skopeo_reads_it_as_an_archive_of_oci_and_of_docker(archive):
    path, digest = archive
    for kind in ("oci-archive", "docker-archive"):
        command = [find_command("skopeo"), "inspect", f"{kind}:{path}"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        assert kind != "oci-archive" or json.loads(said.stdout)["Digest"] == digest
