from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oci"))

from oci_builders import RECIPE, FakeRegistry, fill_cache, make_rootfs, make_wheel, sha256_hex

from zse.cli import run
from zse.oci.image.build import build_image
from zse.oci.image.options import BuildOptions, BuiltImage
from zse.oci.layout.folder import ImageLayout
from zse.oci.recipe import load_recipe
from zse.oci.registry import client
from zse.oci.registry.client import Registry


@pytest.fixture
def built(tmp_path) -> BuiltImage:
    """A small image in ``out``, its recipe and locks in ``recipe``."""
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "image.toml").write_text(RECIPE)
    (recipe / "boot.py").write_text("")
    wheel = make_wheel(recipe)
    digest = sha256_hex(wheel.read_bytes())
    (recipe / "wheels.amd64.lock").write_text(
        f'[[wheel]]\nname = "demo"\nversion = "1.0"\nfile = "{wheel.name}"\nsha256 = "{digest}"\n'
    )
    (recipe / "debian.amd64.lock").write_text("")
    (tmp_path / "model.zse").write_bytes(b"model")
    make_rootfs(tmp_path / "base.tar")
    options = BuildOptions(
        name="zse:1",
        cache_dir=fill_cache(tmp_path / "cache", recipe),
        model=tmp_path / "model.zse",
        base=f"rootfs:{tmp_path / 'base.tar'}",
        output=f"oci:{tmp_path / 'out'}",
    )
    return build_image(load_recipe(recipe), options, lambda _: None)


def test_inspect_shows_what_people_ask_for(built, tmp_path, capsys):
    assert run(["image", "inspect", f"oci:{tmp_path / 'out'}"]) == 0
    shown = capsys.readouterr().out
    for words in (built.digest, "linux/amd64", "user        65532", "model", "2 pypi", "spdx"):
        assert words in shown


def test_inspect_says_first_which_model_and_how_its_weights_come(built, tmp_path, capsys):
    assert run(["image", "inspect", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines[2:6])
    assert shown["sha256"] == sha256_hex(b"model")
    assert shown["weights"] == "in the image"
    assert "byte code   none: the image starts twice as slowly" in lines


def test_an_image_of_a_stranger_does_not_command_the_terminal(built, tmp_path, capsys):
    layout = ImageLayout(tmp_path / "out")
    (image,) = (one for one in layout.manifests() if not one.artifact_type)
    document = json.loads(layout.read_blob(image.digest))
    document["annotations"]["a"] = "\x1b]0;b\x07"
    content = json.dumps(document).encode()
    layout.add_image(layout.add(image.media_type, content), "evil", [])
    assert run(["image", "inspect", f"oci:{tmp_path / 'out'}:evil"]) == 0
    shown = capsys.readouterr().out
    assert "a=\\u001b]0;b\\u0007" in shown
    assert not {"\x1b", "\x07"} & set(shown)


def test_name_too_long_for_a_path_is_only_a_bad_reference(tmp_path, capsys):
    assert run(["image", "inspect", "A" * 5000]) == 2
    assert "not an image reference" in capsys.readouterr().err


def test_inspect_as_json_holds_layers_labels_and_materials(built, tmp_path, capsys):
    assert run(["image", "inspect", f"oci:{tmp_path / 'out'}:1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (platform,) = report["platforms"]
    assert report["digest"] == built.digest
    assert len(platform["layers"]) == len(built.layers)
    assert platform["labels"]["dev.zse.recipe"] == platform["facts"]["recipe"] == "small"
    assert platform["sbom"]["pypi"] == 2


def test_platform_that_is_not_there_is_named(built, tmp_path, capsys):
    place = f"oci:{tmp_path / 'out'}"
    assert run(["image", "inspect", place, "--platform", "linux/arm64"]) == 9
    assert "It has linux/amd64" in capsys.readouterr().err


def test_verify_says_that_every_digest_agrees(built, tmp_path, capsys):
    place = f"oci:{tmp_path / 'out'}"
    assert run(["image", "verify", place, "--locks", str(tmp_path / "recipe")]) == 0
    assert "every digest agrees" in capsys.readouterr().out


def test_verify_ends_with_nine_and_names_each_problem(built, tmp_path, capsys):
    blob = built.layers[-1].digest.removeprefix("sha256:")
    path = tmp_path / "out" / "blobs" / "sha256" / blob
    path.unlink()
    place = f"oci:{tmp_path / 'out'}"
    assert run(["image", "verify", place, "--base", "sha256:x", "--json"]) == 9
    out = capsys.readouterr()
    report = json.loads(out.out)
    assert report["ok"] is False
    assert len(report["problems"]) == 2
    assert blob in out.err


def test_locks_are_named_once(built, tmp_path, capsys):
    place = f"oci:{tmp_path / 'out'}"
    assert run(["image", "verify", place, "--locks", str(tmp_path), "--recipe", "cpu"]) == 2
    assert "--recipe and --locks" in capsys.readouterr().err


def test_locks_that_are_no_folder_are_a_usage_error(built, tmp_path, capsys):
    place = f"oci:{tmp_path / 'out'}"
    assert run(["image", "verify", place, "--locks", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_base_may_be_named_by_its_place(built, tmp_path, capsys):
    place = f"oci:{tmp_path / 'out'}"
    assert run(["image", "verify", place, "--base", place]) == 9
    assert "the base is not stated" in capsys.readouterr().err


def test_what_is_not_there_is_code_three(capsys):
    assert run(["image", "inspect", "oci:/nowhere"]) == 3


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nothere.tar", 3, "there is no file nothere.tar"),
        ("m.zse", 2, "names a model, not an image"),
    ],
)
def test_a_file_that_is_no_image_is_not_asked_of_a_registry(name, code, words, capsys, monkeypatch):
    monkeypatch.setattr("zse.oci.image.source.open_registry", None)
    assert run(["image", "inspect", name]) == code
    assert words in capsys.readouterr().err


def test_a_bill_of_materials_is_printed_as_json(built, tmp_path, capsys):
    assert run(["image", "sbom", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out)["spdxVersion"] == "SPDX-2.3"


def test_an_image_is_pushed_by_name_and_its_digest_printed(built, tmp_path, capsys, monkeypatch):
    fake = FakeRegistry()

    def connect(reference, credentials, **options):
        return Registry(reference, credentials, transport=fake.transport(), **options)

    monkeypatch.setattr(client, "Registry", connect)
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    assert run(["image", "push", str(tmp_path / "out"), "127.0.0.1:5000/team/zse"]) == 0
    assert capsys.readouterr().out.strip() == built.digest
    assert ("team/zse", "latest") in fake.manifests
    assert list((tmp_path / "cache" / "images").glob("tmp*")) == []
