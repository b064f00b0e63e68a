from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from zse.oci.image.next_steps import next_steps
from zse.oci.image.options import BuildOptions, ModelMode
from zse.oci.recipe import load_recipe, recipe_folder

NAME = "docker.io/library/llm:1"


@pytest.fixture
def commands():
    """Commands of a build, one string each."""

    def commands(reference: str = NAME, recipe: str = "cpu", **options) -> list[str]:
        wanted = BuildOptions(name="llm:1", cache_dir=Path(), **options)
        return [
            step.command
            for step in next_steps(load_recipe(recipe_folder(recipe)), wanted, reference)
        ]

    return commands


def test_layout_is_run_where_it_lies_or_handed_to_docker(commands):
    found = commands(output="oci:out")
    assert "skopeo copy oci:out:1 docker-daemon:llm:1" in found
    assert "docker run --rm -p 8000:8000 llm:1" in found
    assert "podman run --rm -p 8000:8000 oci:out:1" in found


@pytest.mark.parametrize("path", [".demo/image", "/home/Me/out", "./out"])
def test_layout_whose_path_is_no_name_for_podman_is_handed_to_it(commands, path):
    found = commands(output=f"oci:{path}")
    assert f"skopeo copy oci:{path}:1 containers-storage:{NAME}" in found
    assert f"podman run --rm -p 8000:8000 {NAME}" in found


def test_file_is_loaded_and_run_under_its_name(commands):
    found = commands(output="tar:my images/llm.tar")
    assert found[:2] == [
        "docker load -i 'my images/llm.tar'",
        "podman load -i 'my images/llm.tar'",
    ]
    assert "podman run --rm -p 8000:8000 docker.io/library/llm:1" in found


def test_pushed_image_for_gpus_is_run_with_them_and_deployed(commands):
    found = commands("ghcr.io/acme/llm:1", recipe="cuda", is_pushed=True)
    assert "docker run --rm -p 8000:8000 --gpus=all ghcr.io/acme/llm:1" in found
    assert "podman run --rm -p 8000:8000 --device=nvidia.com/gpu=all ghcr.io/acme/llm:1" in found
    assert found[-1] == "zse deploy kubernetes --image ghcr.io/acme/llm:1"


def test_model_that_is_not_in_the_image_is_given_to_it(commands):
    mounted = commands(output="oci:out", model_mode=ModelMode.VOLUME)
    assert any("-v ./models:/models:ro" in command for command in mounted)
    url = "s3://bucket/m.zse"
    fetched = commands(is_pushed=True, model_mode=ModelMode.URL, model_url=url)
    assert "-e AWS_ACCESS_KEY_ID" in fetched[0]
    assert fetched[-1] == f"zse deploy kubernetes {url} --image llm:1"


def test_question_is_what_the_server_reads(commands):
    words = shlex.split(next(c for c in commands(output="oci:out") if c.startswith("curl")))
    assert json.loads(words[-1])["messages"][0]["role"] == "user"
    port = replace(load_recipe(recipe_folder("cpu")), port=9000)
    options = BuildOptions(name="llm:1", cache_dir=Path(), output="oci:out")
    assert any("127.0.0.1:9000" in step.command for step in next_steps(port, options, NAME))


def test_build_says_what_comes_next(build, project):
    built = build(output=f"tar:{project / 'i.tar'}")
    assert built.next_steps[0].command == f"docker load -i {project / 'i.tar'}"
