"""What an argument means, and what is made of an image."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from zse.deploy.measure.runners import RUNNERS
from zse.deploy.measure.start import measure_start
from zse.deploy.measure.subjects import is_image, model_subject, opened_image
from zse.errors import NotFoundError
from zse.oci.errors import LayoutError
from zse.oci.layout.layer import MEDIA_TYPE_TAR
from zse.oci.layout.manifest import MEDIA_TYPE_CONFIG, MEDIA_TYPE_MANIFEST, digest_of

ROOT = Path(__file__).parents[3]
SCRIPTED = str(Path(__file__).parent / "scripted_endpoint.py")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny", False),
        ("model.zse", False),
        ("s3://bucket/model.zse", False),
        ("Qwen/Qwen2.5-7B-Instruct", False),
        ("./folder/model", False),
        ("oci:out", True),
        ("oci:out:tag", True),
        ("llm:1", True),
        ("ghcr.io/acme/qwen", True),
        ("localhost/qwen", True),
        ("localhost:5000/qwen:1", True),
        ("acme/qwen:1", True),
        ("acme/qwen@sha256:" + "0" * 64, True),
    ],
)
def test_an_image_is_told_from_a_model_by_its_name(name, expected):
    assert is_image(name) is expected


def test_what_lies_here_is_a_model_unless_it_is_an_archive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("odd:name").mkdir()
    Path("image.tar").touch()
    assert not is_image("odd:name")
    assert is_image("image.tar")


def test_a_model_is_a_fresh_server_process():
    found = model_subject("m.zse", device="cpu")
    command = found.command(1234)
    assert command[:4] == [sys.executable, "-m", "zse.serve", "m.zse"]
    assert command[-4:] == ["--port", "1234", "--device", "cpu"]
    assert "--device" not in model_subject("m.zse", device="").command(1)


@pytest.fixture
def layout(tmp_path):
    """An image of one file whose entry point is named in its config."""
    blobs = tmp_path / "layout" / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def add(data: bytes, media_type: str) -> dict:
        digest = digest_of(data)
        (blobs / digest.removeprefix("sha256:")).write_bytes(data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    content = tmp_path / "hello"
    content.write_bytes(b"hello")
    with tarfile.open(tmp_path / "layer.tar", "w") as tar:
        tar.add(content, "etc/hello")
    layer = add((tmp_path / "layer.tar").read_bytes(), MEDIA_TYPE_TAR)
    document = {"config": {"Entrypoint": [sys.executable, SCRIPTED], "Env": ["FROM_IMAGE=1"]}}
    config = add(json.dumps(document).encode(), MEDIA_TYPE_CONFIG)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE_MANIFEST,
        "config": config,
        "layers": [layer],
    }
    index = {
        "schemaVersion": 2,
        "manifests": [add(json.dumps(manifest).encode(), MEDIA_TYPE_MANIFEST)],
    }
    (tmp_path / "layout" / "index.json").write_text(json.dumps(index))
    (tmp_path / "layout" / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return tmp_path / "layout"


@pytest.fixture
def as_it_is(monkeypatch):
    """A runner that starts the entry point on this machine, with the image's variables."""

    def here(image, arguments, variables):
        pairs = [f"{name}={value}" for name, value in image.environment(variables).items()]
        command = ["echo", "started"] if arguments else image.entrypoint
        return ["env", *pairs, f"PYTHONPATH={ROOT}", *command]

    monkeypatch.setitem(RUNNERS, "here", here)
    return "here"


@pytest.mark.parametrize("form", ["layout", "archive"])
def test_an_image_is_unpacked_once_and_started_with_its_own_entry_point(
    form, layout, as_it_is, tmp_path
):
    name = f"oci:{layout}"
    if form == "archive":
        with tarfile.open(tmp_path / "image.tar", "w") as tar:
            tar.add(layout, ".")
        name = str(tmp_path / "image.tar")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    said: list[str] = []
    with opened_image(
        name, scratch, device="cpu", runner=as_it_is, auth_file=Path("/none"), say=said.append
    ) as subject:
        assert (scratch / "rootfs/etc/hello").read_bytes() == b"hello"
        command = subject.command(1234)
        assert {"FROM_IMAGE=1", "PORT=1234", "ZSE_DEVICE=cpu", "ZSE_HOST=127.0.0.1"} <= set(command)
        start = measure_start(subject, timeout_seconds=60)
    assert start.first_token_ms > 0
    assert subject.how == "here"
    assert any("not measured" in words for words in said)


def test_an_archive_that_is_none_and_one_that_is_absent_are_errors(tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"no archive")
    for name, error in (("bad.tar", LayoutError), ("absent.tar", NotFoundError)):
        folder = tmp_path / f"for-{name}"
        folder.mkdir()
        with (
            pytest.raises(error, match=name),
            opened_image(
                str(tmp_path / name), folder, device="", runner="", auth_file=Path("/none"), say=str
            ),
        ):
            pass


@pytest.mark.system
def test_a_reference_is_pulled_from_its_registry_first(registry, layout, as_it_is, tmp_path):
    reference = f"{registry}/measured/llm:1"
    push = ["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout}"]
    subprocess.run([*push, f"docker://{reference}"], check=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    said: list[str] = []
    with opened_image(
        reference, scratch, device="", runner=as_it_is, auth_file=Path("/none"), say=said.append
    ) as subject:
        assert (scratch / "rootfs/etc/hello").read_bytes() == b"hello"
        assert "ZSE_DEVICE" not in " ".join(subject.command(1))
    assert said[0] == f"pulling {reference} (not measured)"
