from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from faulty_s3 import faulty_s3
from sample_packs import sample_pack
from typer.testing import CliRunner

from zse.cli import build_image as command_module
from zse.cli import image_kernels, run
from zse.kernels.sources import source_digest
from zse.oci.errors import RegistryAuthError
from zse.oci.image import build as oci_build
from zse.oci.image.next_steps import NextStep
from zse.oci.image.options import BuiltImage, BuiltPlatform, ModelMode
from zse.oci.registry.client import Registry

__all__ = ["faulty_s3"]
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

    def build_image(recipe, wanted, report, progress):
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
                    python="3.11.2",
                    warnings=("it starts slowly",),
                ),
            ),
            output=wanted.output,
            next_steps=(NextStep(purpose="run it", command="docker run zse:1"),),
        )

    monkeypatch.setattr(oci_build, "build_image", build_image)
    monkeypatch.setattr(Registry, "check_push", lambda registry: None)
    return options


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Architectures that were compiled for; nothing is there before, and nobody is asked."""
    seen = []

    def build(gpu, *_):
        seen.append(gpu)
        return Path(gpu)

    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(image_kernels, "find_spec", lambda _: True)
    monkeypatch.setattr(image_kernels, "_built", build)
    return seen


def invoke(*arguments):
    return CliRunner().invoke(command_module.app, [str(a) for a in arguments])


def test_digest_is_the_only_word_on_standard_output(model, asked):
    result = invoke(model, "--name", "zse:1", "--output", "oci:out")
    assert result.stdout == "sha256:d\n"
    assert "20.0 MB image + 10.0 MB model" in result.stderr


def test_json_holds_the_result(model, asked):
    result = invoke(model, "--name", "zse:1", "--output", "oci:out", "--json")
    assert json.loads(result.stdout)["digest"] == "sha256:d"


def test_json_holds_each_layer_once_and_the_warnings(model, asked):
    words = json.loads(invoke(model, "--name", "zse:1", "--output", "oci:out", "--json").stdout)
    assert "layers" not in words
    assert words["platforms"][0]["layers"] == []
    assert words["platforms"][0]["warnings"] == ["it starts slowly"]
    assert words["next_steps"] == [{"purpose": "run it", "command": "docker run zse:1"}]


def test_warnings_and_next_commands_come_last(model, asked):
    said = invoke(model, "--name", "zse:1", "--output", "oci:out").stderr.splitlines()
    assert said[-3:] == ["warning: it starts slowly", "run it:", "  docker run zse:1"]


def test_file_is_baked_as_it_is(model, asked):
    invoke(model, "--name", "zse", "--push")
    assert (asked[0].model, asked[0].is_pushed) == (model, True)


def test_object_is_fetched_into_the_cache_first(model, asked, faulty_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    faulty_s3.objects["/bucket/m.zse"] = (model.read_bytes(), {})
    assert invoke("s3://bucket/m.zse", "--name", "zse", "--push").exit_code == 0
    assert asked[0].model.parent == tmp_path / "cache" / "models"
    assert asked[0].model.read_bytes() == model.read_bytes()


def test_it_is_shown_how_far_the_fetch_of_the_model_is(
    model, asked, faulty_s3, tmp_path, monkeypatch
):
    words = []

    def recording(_amount):
        return lambda word, *_: words.append(word)

    monkeypatch.setattr("zse.cli.transfer_display.PlainLines", recording)
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    faulty_s3.objects["/bucket/m.zse"] = (model.read_bytes(), {})
    invoke("s3://bucket/m.zse", "--name", "zse", "--push")
    assert set(words) == {"fetching"}


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


def test_image_for_gpus_gets_the_packs_of_a_folder(model, asked, tmp_path):
    for gpu in ("sm_80", "sm_86", "sm_89", "sm_90"):
        pack = sample_pack(gpu, provenance={"sources": source_digest()})
        (tmp_path / f"{gpu}.zkp").write_bytes(pack)
    arguments = ("--name", "zse", "--push", "--kernels", tmp_path)
    invoke(model, *arguments, "--recipe", "cuda")
    invoke(model, *arguments, "--gpu", "sm_90")
    assert sorted(asked[0].kernels) == ["sm_80", "sm_86", "sm_89", "sm_90"]
    assert asked[1].kernels == {"sm_90": tmp_path / "sm_90.zkp"}


def test_what_is_not_there_is_compiled_when_everything_was_checked(model, asked, compiled):
    invoke(model, "--name", "zse", "--push", "--recipe", "cuda")
    assert compiled == ["sm_80", "sm_86", "sm_89", "sm_90"]
    assert list(asked[0].kernels) == compiled


@pytest.mark.parametrize("more", [["--kernels", "packs"], ["--gpu", "sm_90"]])
@pytest.mark.parametrize("recipe", ["cpu", "cuda-dev"])
def test_packs_for_an_image_without_kernels_are_refused_by_name(model, asked, capsys, recipe, more):
    named = ["--name", "z", "--push", "--recipe", recipe]
    assert run(["build-image", str(model), *named, *more]) == 2
    said = capsys.readouterr().err
    assert f"the recipe {recipe} carries no kernel packs" in said
    assert "choose --recipe cuda" in said


def test_who_speaks_of_gpus_gets_an_image_for_gpus(model, asked, compiled):
    result = invoke(model, "--name", "zse", "--push", "--gpu", "sm_90")
    assert "recipe cuda, because of --gpu" in result.stderr
    assert list(asked[0].kernels) == ["sm_90"]


def test_who_names_packs_gets_an_image_for_gpus(model, asked, compiled, tmp_path):
    result = invoke(model, "--name", "zse", "--push", "--kernels", tmp_path)
    assert "recipe cuda, because of --kernels" in result.stderr
    assert "holds no sm_80.zkp" in str(result.exception)


def test_recipe_that_nobody_chose_is_said_with_the_way_to_the_other(model, asked):
    said = invoke(model, "--name", "zse", "--push").stderr
    assert "recipe cpu" in said
    assert "--recipe cuda or --gpu" in said
    assert "--gpu" not in invoke(model, "--name", "zse", "--push", "--recipe", "cpu").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--platform", "linux/riscv64"], 2, "riscv64"),
        (["--gpu", "sm_35"], 2, "unknown GPU architecture 'sm_35'"),
        (["--output", "oci:{folder}/m.zse"], 2, "m.zse is a file, not a folder"),
        (["--output", "tar:{folder}/m.zse/i.tar"], 2, "m.zse is a file, not a folder"),
        (["--output", "oci:{folder}"], 2, "is not an OCI image layout"),
        (["--output", "tar:{folder}"], 2, "is not an ordinary file"),
        (["--output", "dir:x"], 2, "not understood"),
        (["--name", "A B"], 2, "not an image reference"),
        (["--base", "oci:{folder}/none"], 3, "none does not exist"),
        (["--base", "rootfs:{folder}/none.tar"], 3, "none.tar does not exist"),
        (["--base", "debian:potato"], 9, "is not known"),
        (["--locks", "{folder}"], 9, "wheels.amd64.lock does not exist"),
        (["--max-size", "1kB"], 9, "the model alone has"),
        (["--push"], 9, "wants a user and a password"),
    ],
)
def test_nothing_is_compiled_when_a_check_fails(
    model, asked, compiled, tmp_path, capsys, monkeypatch, arguments, code, words
):
    def check_push(_):
        raise RegistryAuthError("it wants a user and a password")

    monkeypatch.setattr(Registry, "check_push", check_push)
    words_given = [word.format(folder=tmp_path) for word in arguments]
    usual = ["--name", "zse", "--output", f"oci:{tmp_path / 'out'}", "--recipe", "cuda"]
    assert run(["build-image", str(model), *usual, *words_given]) == code
    assert words in capsys.readouterr().err
    assert (compiled, asked) == ([], [])


def test_unreadable_model_is_found_before_anything_is_compiled(asked, compiled, tmp_path):
    (tmp_path / "m.zse").write_bytes(b"anything")
    named = ["--name", "zse", "--push", "--recipe", "cuda"]
    assert run(["build-image", str(tmp_path / "m.zse"), *named]) == 6
    assert (compiled, asked) == ([], [])


def test_unknown_recipe_names_the_known_ones(model, capsys):
    assert run(["build-image", str(model), "--name", "z", "--push", "--recipe", "tpu"]) == 3
    assert "cpu, cuda, cuda-dev" in capsys.readouterr().err
