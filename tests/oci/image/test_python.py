"""The image's own Python makes the byte code, whatever Python runs the builder."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard
from oci_builders import lock_python, read_layer

from zse.oci.errors import LockError
from zse.oci.image import platform as platform_image
from zse.oci.image.inspect import read_image_facts
from zse.oci.image.python import host_architecture
from zse.oci.layout.layer import Compression

OTHER = "arm64" if host_architecture() == "amd64" else "amd64"
PYC = "opt/zse/site-packages/demo/__pycache__/__init__.cpython-311.pyc"


@pytest.fixture
def lock(project):
    """Lock the image's Python for an architecture."""

    def lock(architecture: str = host_architecture(), **how: str) -> None:
        lock_python(project / "recipe", project / "cache", architecture=architecture, **how)

    return lock


@pytest.fixture
def build_here(build):
    return lambda **options: build(platforms=(f"linux/{host_architecture()}",), **options)


@pytest.fixture(autouse=True)
def _platforms(project):
    recipe = project / "recipe" / "image.toml"
    recipe.write_text(f'platforms = ["linux/amd64", "linux/arm64"]\n{recipe.read_text()}')
    lock = project / "recipe" / "wheels.amd64.lock"
    lock.with_name("wheels.arm64.lock").write_text(lock.read_text())


def files_of(layout: Path, layer) -> dict[str, bytes]:
    packed = read_layer(layout, layer.digest)
    data = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {m.name: archive.extractfile(m).read() for m in archive if m.isreg()}


def test_locked_python_compiles_what_lies_in_the_image(build_here, lock, project, tmp_path):
    program, mark = tmp_path / "other-python", tmp_path / "started"
    program.write_text(f'#!/bin/sh\ntouch "{mark}"\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    lock(program=str(program))
    built = build_here()
    assert mark.exists()
    assert PYC in files_of(project / "out", built.layers[1])
    assert built.platforms[0].python == "3.11.99"
    assert built.platforms[0].warnings == ()
    facts = read_image_facts(f"oci:{project / 'out'}", auth_file=project / "none")
    assert facts.byte_code == "3.11.99"


def test_another_release_in_the_lock_is_another_layer(build_here, lock):
    lock()
    first = build_here()
    lock(version="3.11.100")
    assert build_here().platforms[0].python == "3.11.100"
    lock()
    assert build_here().digest == first.digest


def test_unpacked_python_is_gone_after_the_build(build_here, lock, project):
    lock()
    build_here()
    assert {path.name for path in (project / "cache").iterdir()} == {"downloads", "layers"}


def test_cached_layers_need_no_python(build_here, lock, project):
    lock()
    first = build_here()
    for path in (project / "cache" / "downloads" / "debian").iterdir():
        path.unlink()
    assert build_here().digest == first.digest


def test_image_for_another_processor_is_compiled_by_the_same_release(build, lock, project):
    lock()
    lock(OTHER, version="3.11.99")
    other = build(platforms=(f"linux/{OTHER}",))
    assert PYC in files_of(project / "out", other.layers[1])
    assert other.platforms[0].python == "3.11.99"


def test_other_release_for_this_machine_is_refused(build, lock):
    lock()
    lock(OTHER, version="3.11.100")
    with pytest.raises(LockError, match=r"3\.11\.100 for .* and 3\.11\.99 for"):
        build(platforms=(f"linux/{OTHER}",))


def test_recipe_whose_lock_names_no_python_says_so(build_here, project):
    said: list[str] = []
    built = build_here(report=said.append)
    assert any(words.startswith("warning: no byte code goes into the image") for words in said)
    assert "no Debian lock names" in built.platforms[0].warnings[0]
    facts = read_image_facts(f"oci:{project / 'out'}", auth_file=project / "none")
    assert facts.byte_code == "none"


def test_another_version_of_the_compressor_is_warned_of(build_here, lock, monkeypatch):
    lock()
    monkeypatch.setattr(platform_image, "LIBZSTD_VERSION", "1.4.8")
    (words,) = build_here().platforms[0].warnings
    assert "libzstd is 1.4.8" in words
    assert build_here(compression=Compression.NONE).platforms[0].warnings == ()


ROOT = Path(__file__).resolve().parents[3]
REQUIREMENT = f"zstandard=={zstandard.__version__}"
BUILD = """
import sys
from pathlib import Path
from zse.oci.image.build import build_image
from zse.oci.image.options import BuildOptions
from zse.oci.recipe import load_recipe

folder = Path(sys.argv[1])
options = BuildOptions(
    name="zse:1", cache_dir=folder / "cache", model=folder / "model.zse", is_cached=False,
    base=f"rootfs:{folder / 'base.tar'}", output=f"oci:{folder / 'other'}",
    platforms=(sys.argv[2],),
)
print(sys.version_info[:3], build_image(load_recipe(folder / "recipe"), options, print).digest)
"""


def other_pythons(*, is_same_minor: bool) -> dict[str, Path]:
    """Return releases of Python on this machine that are not the one that runs this, by version."""
    places = [
        *Path("/usr/bin").glob("python3.??"),
        *Path("/usr/local/bin").glob("python3.??"),
        *Path("~/.pyenv/versions").expanduser().glob("3.??.*/bin/python"),
    ]
    ours, found = sys.version_info[:3], {}
    for path in places:
        command = [path, "-I", "-c", "import sys; print(*sys.version_info[:3])"]
        words = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        version = tuple(int(word) for word in words.split())
        if version >= (3, 11) and version != ours and (version[:2] == ours[:2]) == is_same_minor:
            found[".".join(words.split())] = path
    return found


def digest_by(python: Path, project: Path, packages: list[str]) -> str:
    """Build with another Python; return the digest."""
    done = subprocess.run(
        [python, "-c", BUILD, str(project), f"linux/{host_architecture()}"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join([str(ROOT), *packages])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()[-1]


def test_two_releases_of_python_build_the_same_image(build_here, lock, project):
    others = other_pythons(is_same_minor=True)
    if not others:
        pytest.skip("this machine has only one release of this Python: nothing to compare with")
    lock()
    first = build_here(is_cached=False).digest
    packages = [path for path in sys.path if path.endswith("site-packages")]
    found = {version: digest_by(path, project, packages) for version, path in others.items()}
    assert found == dict.fromkeys(others, first)


@pytest.mark.slow
def test_minor_versions_of_python_build_the_same_image(build_here, lock, project):
    others = other_pythons(is_same_minor=False)
    if not others:
        pytest.skip("this machine has only one minor version of Python: nothing to compare with")
    lock()
    first, found = build_here(is_cached=False).digest, {}
    for version, path in others.items():
        packages = project / version
        install = ["-m", "pip", "install", "--quiet", "--target", str(packages)]
        done = subprocess.run(
            [path, *install, "httpx", REQUIREMENT], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"pip of Python {version} cannot install here")
        found[version] = digest_by(path, project, [str(packages)])
    assert found == dict.fromkeys(others, first)
