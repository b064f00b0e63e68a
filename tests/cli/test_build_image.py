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


def test_platforms_budget_and_secrets_are_handed_on(model, asked, tmp_path):
    (tmp_path / "index").write_text("https://me:word@x.example")
    invoke(
        model, "--name", "zse", "--push", "--platform", "linux/amd64,linux/arm64", "--max-size",
        "2GB", "--secret", f"index-url={tmp_path / 'index'}", "--no-attest",
    )  # fmt: skip
    options = asked[0]
    assert options.platforms == ("linux/amd64", "linux/arm64")
    assert options.max_size_bytes == 2_000_000_000
    assert options.secrets.values["index-url"].startswith("https://me:")
    assert not options.is_attested


def test_model_is_described_from_its_own_header(model, asked):
    invoke(model, "--name", "zse", "--push")
    assert asked[0].model_facts["name"]


def test_file_that_is_no_model_is_not_baked_in(tmp_path, asked):
    (tmp_path / "m.zse").write_bytes(b"anything")
    assert run(["build-image", str(tmp_path / "m.zse"), "--name", "zse", "--push"]) == 6
    assert asked == []


def test_image_for_gpus_gets_the_packs_of_a_folder(model, asked, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "zse.cli.image_kernels.image_packs",
        lambda gpus, folder, cache, report: seen.append((gpus, folder)) or {"sm_90": folder},
    )
    arguments = ("--recipe", "cuda", "--kernels", tmp_path)
    invoke(model, "--name", "zse", "--push", *arguments)
    invoke(model, "--name", "zse", "--push", *arguments, "--gpu", "sm_90")
    assert seen[0] == (("sm_80", "sm_86", "sm_89", "sm_90"), tmp_path)
    assert seen[1] == (("sm_90",), tmp_path)
    assert asked[1].kernels == {"sm_90": tmp_path}


def test_packs_for_an_image_without_kernels_are_refused(model, asked, tmp_path, capsys):
    assert (
        run(["build-image", str(model), "--name", "z", "--push", "--kernels", str(tmp_path)]) == 2
    )
    assert "carries no kernel packs" in capsys.readouterr().err


def test_unknown_recipe_names_the_known_ones(model, capsys):
    assert run(["build-image", str(model), "--name", "z", "--push", "--recipe", "tpu"]) == 3
    assert "cpu, cuda, cuda-dev" in capsys.readouterr().err
