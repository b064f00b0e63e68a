"""Builds by other people on other machines: folder, clock zone, user, locale, umask, hash seed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
BUILD = """
import sys
from pathlib import Path
from zse.oci.image.build import build_image
from zse.oci.layout.layer import Compression
from zse.oci.image.options import BuildOptions
from zse.oci.recipe import load_recipe

folder, compression = Path(sys.argv[1]), Compression(sys.argv[2])
built = build_image(
    load_recipe(folder / "recipe"),
    BuildOptions(
        name="zse:1",
        cache_dir=folder / "cache",
        model=folder / "model.zse",
        kernels={"sm_90": folder / "sm_90.zkp"},
        base=f"rootfs:{folder / 'base.tar'}",
        output=f"oci:{folder / 'out'}",
        compression=compression,
    ),
    lambda _: None,
)
print(built.digest, *sorted(path.name for path in (folder / "out/blobs/sha256").iterdir()))
"""


@pytest.fixture
def inputs(project):
    recipe = project / "recipe" / "image.toml"
    recipe.write_text(recipe.read_text() + '[kernels]\ngpu = ["sm_90"]\n')
    (project / "sm_90.zkp").write_bytes(b"pack" * 1000)
    return project


def build_as(inputs: Path, place: Path, compression: str, **how) -> str:
    """Build from a copy of the inputs in another folder, in a process of its own."""
    shutil.copytree(inputs, place)
    for path in [place, *place.rglob("*")]:
        os.utime(path, (how["mtime"], how["mtime"]))
        if how["user"]:
            os.chown(path, how["user"], how["user"])
    if how["user"]:
        for parent in place.parents:
            if parent.stat().st_uid == os.getuid() and "pytest" in str(parent):
                parent.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(place),
        **how["environment"],
    }
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(place), compression],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=place,
        umask=how["umask"],
        user=how["user"] or None,
        group=how["user"] or None,
        extra_groups=[] if how["user"] else None,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def others_may_run_this() -> bool:
    """Whether another user can read the interpreter and the checkout."""
    places = [Path(sys.executable).resolve(), ROOT / "zse" / "__init__.py"]
    folders = [folder for place in places for folder in place.parents]
    return all(folder.stat().st_mode & 0o001 for folder in folders)


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_people_in_other_places_get_the_same_image(inputs, tmp_path_factory, compression):
    other_user = NOBODY if os.getuid() == 0 and others_may_run_this() else 0
    places = tmp_path_factory.mktemp("places")
    first = build_as(
        inputs, places / "first", compression, mtime=1, user=0, umask=0o022,
        environment={"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"},
    )  # fmt: skip
    second = build_as(
        inputs, places / "another folder" / "ü", compression, mtime=1_700_000_000,
        user=other_user, umask=0o077,
        environment={"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "LANGUAGE": "tr", "PYTHONHASHSEED": "2"},
    )  # fmt: skip
    assert first == second
    assert first.startswith("sha256:")
