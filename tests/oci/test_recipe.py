from __future__ import annotations

import pytest

from zse.errors import NotFoundError
from zse.oci.debian.packages import read_debian_lock
from zse.oci.errors import BadReferenceError, LockError
from zse.oci.python.wheels import read_wheel_lock
from zse.oci.recipe import load_lock, load_recipe, recipe_folder, recipe_names, write_lock


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_and_their_locks_fit_together(name):
    folder = recipe_folder(name)
    for platform in load_recipe(folder).platforms:
        recipe = load_recipe(folder).for_platform(platform)
        names = {wheel.name for wheel in read_wheel_lock(folder, recipe)}
        assert {"uvicorn", "kitoken"} <= names
        assert ("torch" in names) is (name == "cuda-dev")  # what converts
        packages = read_debian_lock(folder, recipe.debian)
        assert "python3" in {package.name for package in packages}
        assert all((folder / source).is_file() for source in recipe.files.values())


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_locks_name_no_host(name):
    for path in recipe_folder(name).glob("*.lock"):
        assert "://" not in path.read_text()


def test_recipe_for_gpus_carries_kernels_and_neither_torch_nor_triton():
    recipe = load_recipe(recipe_folder("cuda"))
    assert recipe.kernels.gpu == ("sm_80", "sm_86", "sm_89", "sm_90")
    assert not any(text.startswith(("torch", "triton", "numpy")) for text in recipe.requirements)
    assert recipe.env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


def test_recipe_is_not_bent_to_a_platform_that_it_does_not_name():
    with pytest.raises(BadReferenceError, match="not made for linux/arm64"):
        load_recipe(recipe_folder("cuda-dev")).for_platform("linux/arm64")


def test_lock_comes_back_as_it_was_written(tmp_path):
    entries = [{"name": "a", "size_bytes": 3}, {"name": "b~1", "size_bytes": 0}]
    write_lock(tmp_path / "x.lock", "package", entries)
    assert load_lock(tmp_path / "x.lock", "package") == entries


def test_value_that_would_break_the_lock_is_refused(tmp_path):
    with pytest.raises(LockError):
        write_lock(tmp_path / "x.lock", "package", [{"name": 'a"\n[[evil]]'}])
    assert not (tmp_path / "x.lock").exists()


@pytest.mark.parametrize("text", ["[[package", "package = 3", "package = [1]"])
def test_malformed_lock_is_an_error(tmp_path, text):
    (tmp_path / "x.lock").write_text(text)
    with pytest.raises(LockError):
        load_lock(tmp_path / "x.lock", "package")


def test_missing_lock_tells_how_to_make_it(tmp_path):
    with pytest.raises(LockError) as caught:
        load_lock(tmp_path / "x.lock", "package")
    assert "--update-lock" in caught.value.hint


def test_unknown_key_of_a_recipe_is_an_error(tmp_path):
    (tmp_path / "image.toml").write_text('name = "x"\nentrypoint = []\nsurprise = 1\n')
    with pytest.raises(LockError, match="surprise"):
        load_recipe(tmp_path)


def test_unknown_recipe_is_not_found():
    with pytest.raises(NotFoundError, match="'quantum'"):
        recipe_folder("quantum")
