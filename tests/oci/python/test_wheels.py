from __future__ import annotations

import subprocess

import pytest
from broken_rules import breaks
from oci_builders import make_wheel, sha256_hex

from zse.errors import DiskFullError
from zse.oci.errors import ImageRule, LockError
from zse.oci.python import wheels as wheels_module
from zse.oci.python.wheels import fetch_wheels, read_wheel_lock, update_wheel_lock
from zse.oci.recipe import load_recipe


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The only place where pip looks: a folder with one wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    make_wheel(folder)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def recipe(recipe_files):
    return load_recipe(recipe_files)


def test_lock_is_made_from_what_pip_finds(recipe, index, tmp_path):
    update_wheel_lock(recipe, tmp_path / "locks", tmp_path / "cache")
    (locked,) = read_wheel_lock(tmp_path / "locks", recipe)
    wheel = next(index.iterdir())
    assert (locked.file, locked.sha256) == (wheel.name, sha256_hex(wheel.read_bytes()))


def test_locked_wheel_is_fetched_once(recipe, recipe_files, index, tmp_path, monkeypatch):
    locked = read_wheel_lock(recipe_files, recipe)
    (path,) = fetch_wheels(recipe, locked, tmp_path / "cache")
    assert sha256_hex(path.read_bytes()) == locked[0].sha256

    def never(command, secrets):
        raise AssertionError(command)

    monkeypatch.setattr(wheels_module, "_run_pip", never)
    assert fetch_wheels(recipe, locked, tmp_path / "cache") == [path]


def test_wheel_with_another_hash_is_refused(recipe, recipe_files, index, tmp_path):
    make_wheel(index, files={"demo/__init__.py": b"evil"})
    with breaks(ImageRule.WHEEL, match="could not fetch"):
        fetch_wheels(recipe, read_wheel_lock(recipe_files, recipe), tmp_path / "cache")


def test_spare_index_is_asked_only_when_pip_finds_nothing(
    recipe, recipe_files, tmp_path, monkeypatch
):
    commands = []

    def fail(command, secrets):
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: none found")

    monkeypatch.setattr(wheels_module, "_run_pip", fail)
    spare = recipe.wheels.__class__(
        requirements=("demo==1.0",), extra_index="https://spare.example"
    )
    with breaks(ImageRule.WHEEL, match="none found"):
        wheels_module._download(
            recipe.__class__(name="x", folder=recipe_files, entrypoint=(), wheels=spare),
            ["demo==1.0"],
            tmp_path,
            None,
            hashes=True,
        )
    assert ["--extra-index-url" in command for command in commands] == [False, True]


def test_full_disk_is_called_that_and_its_folder_named(recipe, recipe_files, tmp_path, monkeypatch):
    said = "ERROR: Could not install\nOSError: [Errno 28] No space left on device"
    runs = []

    def fail(command, secrets):
        runs.append(command)
        return subprocess.CompletedProcess(command, 2, "", said)

    monkeypatch.setattr(wheels_module, "_run_pip", fail)
    with pytest.raises(DiskFullError, match=str(tmp_path / "cache")) as caught:
        fetch_wheels(recipe, read_wheel_lock(recipe_files, recipe), tmp_path / "cache")
    assert "ZSE_CACHE_DIR" in caught.value.hint
    assert len(runs) == 1


def test_lock_of_other_requirements_is_stale(recipe_files):
    text = (recipe_files / "image.toml").read_text()
    (recipe_files / "image.toml").write_text(text.replace("demo==1.0", "demo==2.0"))
    with pytest.raises(LockError, match=r"demo==1\.0, demo==2\.0"):
        read_wheel_lock(recipe_files, load_recipe(recipe_files))


def test_requirement_without_a_version_is_refused(recipe_files):
    text = (recipe_files / "image.toml").read_text()
    (recipe_files / "image.toml").write_text(text.replace("demo==1.0", "demo"))
    with pytest.raises(LockError, match="no ==version"):
        read_wheel_lock(recipe_files, load_recipe(recipe_files))
