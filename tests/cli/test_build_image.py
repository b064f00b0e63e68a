from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from zse.cli import build_image as command_module
from zse.cli import run
from zse.oci import build as oci_build
from zse.oci.options import BuiltImage, BuiltPlatform, ModelMode

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "small.zse.gz"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.zse"
    path.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    return path


@pytest.fixture
def asked(monkeypatch):
    """Options of each build; nothing is built."""
    options = []

    def build_image(recipe, wanted, report):
        options.append(wanted)
        report("working")
        return BuiltImage(
            reference=wanted.name,
            digest="sha256:d",
            platforms=(
                BuiltPlatform(
                    platform="linux/amd64",
                    digest="sha256:d",
                    size_bytes=30_000_000,
                    layers=(),
                    model_size_bytes=10_000_000,
                ),
            ),
            output=wanted.output,
        )

    monkeypatch.setattr(oci_build, "build_image", build_image)
    return options


def invoke(*arguments):
    return CliRunner().invoke(command_module.command, [str(a) for a in arguments])


def test_digest_is_the_only_word_on_standard_output(model, asked):
    result = invoke(model, "--name", "zse:1", "--output", "oci:out")
    assert result.stdout == "sha256:d\n"
    assert "20.0 MB image + 10.0 MB model" in result.stderr


def test_json_holds_the_result(model, asked):
    result = invoke(model, "--name", "zse:1", "--output", "oci:out", "--json")
    assert json.loads(result.stdout)["digest"] == "sha256:d"


def test_file_is_baked_as_it_is(model, asked):
    invoke(model, "--name", "zse", "--push")
    assert (asked[0].model, asked[0].is_pushed) == (model, True)


def test_object_is_fetched_first(model, asked, tmp_path, monkeypatch):
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    seen = []
    monkeypatch.setattr(
        "zse.store.fetch",
        lambda url, path: (seen.append(url), path.write_bytes(model.read_bytes())),
    )
    assert invoke("s3://bucket/m.zse", "--name", "zse", "--push").exit_code == 0
    assert seen == ["s3://bucket/m.zse"]


def test_address_of_a_url_image_is_not_fetched(asked):
    invoke("s3://bucket/m.zse", "--name", "zse", "--push", "--model", "url")
    assert (asked[0].model_mode, asked[0].model_url) == (ModelMode.URL, "s3://bucket/m.zse")


def test_mirror_of_the_environment_is_used(model, asked, monkeypatch):
    monkeypatch.setenv("ZSE_DEBIAN_MIRROR", "http://mirror.example/debian")
    invoke(model, "--name", "zse", "--push")
    assert asked[0].mirror == "http://mirror.example/debian"


def test_image_that_would_go_nowhere_ends_with_a_hint(model, capsys):
    assert run(["build-image", str(model), "--name", "zse"]) == 2
    assert "hint: Give --output" in capsys.readouterr().err


def test_bad_name_ends_with_a_hint(model, capsys):
    assert run(["build-image", str(model), "--name", "A B", "--push"]) == 2
    assert "not an image reference" in capsys.readouterr().err
