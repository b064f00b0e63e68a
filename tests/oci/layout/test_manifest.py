from __future__ import annotations

import json

import pytest

from zse.oci.errors import BadReferenceError, LayoutError
from zse.oci.layout.layer import Layer
from zse.oci.layout.manifest import (
    Descriptor,
    build_config,
    build_manifest,
    canonical_json,
    choose_platform,
)

LAYER = Layer(media_type="t", digest="sha256:d", diff_id="sha256:u", size_bytes=1, comment="code")
SETTINGS = {
    "Entrypoint": ["python3"],
    "Env": {"B": "2", "A": "1"},
    "Labels": {"x": "y"},
    "User": "1:1",
    "ExposedPorts": {"8000/tcp": {}},
    "Volumes": {},
}


def config_of(base: dict, **options) -> dict:
    return json.loads(
        build_config(
            base, [LAYER], SETTINGS, **{"platform": "linux/amd64", "epoch_seconds": 0, **options}
        )
    )


def test_json_is_canonical():
    assert canonical_json({"b": 1, "a": [1, 2]}) == b'{"a":[1,2],"b":1}'


def test_config_without_a_base_is_complete():
    config = config_of({})
    assert (config["os"], config["architecture"]) == ("linux", "amd64")
    assert config["created"] == "1970-01-01T00:00:00Z"
    assert config["rootfs"]["diff_ids"] == ["sha256:u"]
    assert config["config"]["User"] == "1:1"
    assert config["config"]["ExposedPorts"] == {"8000/tcp": {}}
    assert "Volumes" not in config["config"]


def test_config_is_put_on_top_of_the_base():
    base = {
        "config": {"Env": ["PATH=/p", "A=old"], "Cmd": ["bash"], "Labels": {"base": "yes"}},
        "rootfs": {"diff_ids": ["sha256:base"]},
        "history": [{"created_by": "base"}],
    }
    config = config_of(base)
    assert config["config"]["Env"] == ["A=1", "B=2", "PATH=/p"]
    assert "Cmd" not in config["config"]
    assert config["config"]["Labels"] == {"base": "yes", "x": "y"}
    assert config["rootfs"]["diff_ids"] == ["sha256:base", "sha256:u"]
    assert [step["created_by"] for step in config["history"]] == ["base", "zse: code"]


def test_time_of_the_image_is_the_one_asked_for():
    assert config_of({}, epoch_seconds=86400)["created"] == "1970-01-02T00:00:00Z"


def test_docker_layers_of_a_base_get_their_oci_names():
    found = Descriptor.from_json(
        {
            "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
            "digest": "sha256:x",
            "size": 3,
        }
    )
    manifest = json.loads(build_manifest(found, [found], {}))
    assert manifest["layers"][0]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"


def test_platform_is_chosen_from_an_index():
    def item(architecture: str) -> dict:
        return {
            "mediaType": "m",
            "digest": f"sha256:{architecture}",
            "size": 1,
            "platform": {"os": "linux", "architecture": architecture},
        }

    index = {"manifests": [item("arm64"), item("amd64")]}
    assert choose_platform(index, "linux/amd64").digest == "sha256:amd64"
    with pytest.raises(BadReferenceError, match="linux/arm64, linux/amd64"):
        choose_platform(index, "linux/s390x")


@pytest.mark.parametrize(
    "manifests",
    [1, "x", True, [None], [[]], [{}], [{"platform": 1}], [{"mediaType": "x", "digest": "y"}],
     [{"mediaType": "x", "digest": "y", "size": "z"}], [{"mediaType": "x", "digest": "y", "size": None}]],
)  # fmt: skip
def test_an_index_that_is_none_is_refused(manifests):
    with pytest.raises(LayoutError, match="cannot be read"):
        choose_platform({"manifests": manifests}, "linux/amd64")
