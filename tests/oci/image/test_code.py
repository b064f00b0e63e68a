from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

import zse
from zse.oci.image.code import code_entries, entries_digest
from zse.oci.layout.tar import file_of_bytes
from zse.oci.recipe import load_recipe, recipe_folder

ROOT = Path(__file__).resolve().parents[3]


def test_serving_code_goes_in_and_tools_stay_out():
    paths = {entry.path for entry in code_entries(load_recipe(recipe_folder("cpu")))}
    assert {"opt/zse/boot.py", "opt/zse/healthcheck.py", "opt/zse/app/zse/settings.py"} <= paths
    for absent in ("/oci/", "/cli/", "/quantize/", "__pycache__", "builtin_tiny"):
        assert not any(absent in path for path in paths), absent


def test_pages_go_in_with_their_files_and_the_licences_of_these():
    paths = {entry.path for entry in code_entries(load_recipe(recipe_folder("cpu")))}
    inside = {path.removeprefix("opt/zse/app/zse/serve/ui/") for path in paths}
    vendor = {"static/vendor/LICENSES.txt", "static/vendor/htmx.js"}
    assert {
        "templates/base.html",
        "templates/parts/keys.html",
        "static/base.css",
    } | vendor <= inside


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda-dev"])
def test_an_image_has_the_kernels_of_its_own_processors_and_no_source(name, tmp_path):
    package = tmp_path / "zse"
    for file in ("amd64/libzse-avx2.so", "amd64/libzse-avx2.digest", "arm64/libzse-neon.so"):
        path = package / "kernels/native/lib" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (package / "kernels/native/pool.c").write_bytes(b"")
    recipe = load_recipe(recipe_folder(name))
    for platform in recipe.platforms:
        entries = code_entries(recipe.for_platform(platform), package=package)
        inside = [entry.path for entry in entries if "native" in entry.path]
        library = {"linux/amd64": "amd64/libzse-avx2.so", "linux/arm64": "arm64/libzse-neon.so"}
        assert inside == [f"opt/zse/app/zse/kernels/native/lib/{library[platform]}"]


@pytest.mark.parametrize(("name", "has_loader"), [("cpu", False), ("cuda", True)])
def test_an_image_for_gpus_has_the_loader_of_its_own_processor(name, has_loader, tmp_path):
    package = tmp_path / "zse"
    lib = package / "device/loader/lib"
    for architecture in ("amd64", "arm64"):
        (lib / architecture).mkdir(parents=True)
        for suffix in (".so", ".digest"):
            (lib / architecture / f"libzse-loader{suffix}").write_bytes(b"")
    (package / "device/loader/loader.c").write_bytes(b"")
    recipe = load_recipe(recipe_folder(name)).for_platform("linux/amd64")
    inside = [entry.path for entry in code_entries(recipe, package=package)]
    expected = ["opt/zse/app/zse/device/loader/lib/amd64/libzse-loader.so"] * has_loader
    assert [path for path in inside if "/loader/" in path] == expected


def test_digest_follows_path_mode_and_content():
    entries = [
        file_of_bytes("a", b"1"),
        file_of_bytes("b", b"1"),
        file_of_bytes("a", b"2"),
        file_of_bytes("a", b"1", mode=0o755),
    ]
    assert len({entries_digest([entry]) for entry in entries}) == 4
    assert entries_digest(entries[:2]) == entries_digest(entries[1::-1])


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda-dev"])
def test_an_installed_wheel_gives_an_image_the_code_that_a_checkout_gives(name, tmp_path):
    recipe = load_recipe(recipe_folder(name))
    checkout = list(code_entries(recipe))
    package = tmp_path / "zse"
    shutil.copytree(Path(zse.__file__).parent, package)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    added = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for source, target in added.items():
        shutil.copytree(ROOT / source, tmp_path / target)
    installed = list(code_entries(recipe, package=package))
    assert {entry.path for entry in installed} == {entry.path for entry in checkout}
    assert entries_digest(installed) == entries_digest(checkout)
