"""What the recipes leave out of Debian's Python is nothing that the image's packages ask for."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from packaging.markers import Marker

from zse.oci.recipe import load_recipe, recipe_folder

IMAGE_PYTHON = {"python_version": "3.11", "python_full_version": "3.11.2", "extra": ""}
NEEDED = ("email", "sqlite3", "ssl", "zoneinfo", "html", "xml", "multiprocessing", "decimal")


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_nothing_is_left_out_that_requirements_or_the_server_import(name):
    prune = load_recipe(recipe_folder(name)).debian.prune
    for module in NEEDED:
        for path in (f"usr/lib/python3.11/{module}.py", f"usr/lib/python3.11/{module}/x.py"):
            assert not any(fnmatchcase(path, each) for each in prune), path
    assert any(fnmatchcase("usr/lib/python3.11/test/x.py", each) for each in prune)


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_every_package_finds_what_it_requires_of_the_image_s_own_python(name):
    from importlib.metadata import PackageNotFoundError, requires

    given = [line.partition("==")[0] for line in load_recipe(recipe_folder(name)).requirements]
    names = {_normal(one) for one in given}
    missing = set()
    for one in given:
        try:
            lines = requires(one) or []
        except PackageNotFoundError:
            continue
        for line in lines:
            wanted, _, marker = line.partition(";")
            if not marker or Marker(marker).evaluate(IMAGE_PYTHON):
                missing.add(_normal(re.split(r"[\s<>=!~\[(]", wanted.strip(), maxsplit=1)[0]))
    assert missing - names <= UNUSED


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


UNUSED = frozenset({"huggingface-hub", "importlib-metadata"})
"""Required by name, and never imported by what runs in an image."""
