"""An image built with ``--model url``: it holds no model, and fetches the one it names at start."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import demo_job  # noqa: E402

from zse.deploy.measure.runners import first_that_works  # noqa: E402
from zse.format import convert_model  # noqa: E402

if TYPE_CHECKING:
    from ceph_s3 import S3Server

    from zse.oci.image.unpacked import UnpackedImage

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1200)]


URL = "s3://somewhere/models/tiny.zse"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> UnpackedImage:
    """The image, unpacked; built with the recipe's lock, or anew where the mirror moved on."""
    work = tmp_path_factory.mktemp("url-image")
    layout = work / "image"
    command = ["build-image", URL, "--name", f"url:{demo_job.TAG}", "--output", f"oci:{layout}"]
    command += ["--model", "url", "--compression", "gzip", "--json"]
    with pytest.MonkeyPatch.context() as patch:
        # The developer's own cache is used: wheels and layers are keyed by their digests.
        patch.delenv("ZSE_CACHE_DIR", raising=False)
        done = demo_job.zse(*command)
        if done.returncode:
            done = demo_job.zse(*command, "--update-lock", "--locks", str(work / "locks"))
    assert done.returncode == 0
    built = json.loads(done.stdout)
    assert built["model_size_bytes"] == 0
    return demo_job.unpack(layout, work, built["digest"])


def started(image: UnpackedImage, server: S3Server, url: str) -> Any:
    """Start the image as an orchestrator does, with variables of its own."""
    runner = first_that_works(image, "", demo_job.say)
    variables = {**server.environment(), "ZSE_MODEL": url}
    extra = [f"{name}={value}" for name, value in variables.items()]
    config = {**image.config, "Env": [*image.config["Env"], *extra]}
    return demo_job.started(runner, replace(image, config=config))


def test_it_holds_the_address_and_neither_model_nor_keys(image: UnpackedImage) -> None:
    assert f"ZSE_MODEL={URL}" in image.config["Env"]
    assert not any("AWS" in variable for variable in image.config["Env"])
    assert not list(image.rootfs.rglob("*.zse"))


def test_it_fetches_the_model_from_object_storage_and_answers(
    image: UnpackedImage, s3_server: S3Server, s3_bucket: str
) -> None:
    url = f"s3://{s3_bucket}/models/tiny.zse"
    convert_model("tiny", url, "int8")
    with started(image, s3_server, url) as (address, ready_seconds):
        answer = demo_job.ask(address, ready_seconds)
    assert "Paris" in answer.text
    assert "model-file" in answer.server_timing


def test_it_ends_and_says_so_when_the_object_is_gone(
    image: UnpackedImage, s3_server: S3Server, s3_bucket: str
) -> None:
    server = started(image, s3_server, f"s3://{s3_bucket}/absent.zse")
    with pytest.raises(demo_job.DemoError, match=r"(?s)ended with [1-9].*absent\.zse"), server:
        pass
