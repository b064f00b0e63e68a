"""Compiling the processor's kernels, and what travels in a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from zse.errors import MissingDependencyError
from zse.kernels.errors import NativeLibraryError
from zse.kernels.native import build as builder
from zse.kernels.native import library, sources
from zse.kernels.native.instructions import ALL, of_architecture
from zse.kernels.native.library import libraries, runnable

ROOT = Path(sources.__file__).parents[3]


def test_all_ask_for_the_same_compiler() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = f"ziglang=={sources.COMPILER}"
    assert wanted in project["build-system"]["requires"]
    assert wanted in project["project"]["optional-dependencies"]["demo"]
    assert wanted in (ROOT / ".github" / "workflows" / "release.yml").read_text()


@pytest.mark.parametrize("default", ["off", "fast"])
def test_no_default_of_the_compiler_decides_which_sums_are_fused(
    tmp_path: Path, default: str
) -> None:
    compiler = [*builder.compiler_command(), "-target", "x86_64-linux-gnu", "-mcpu=x86_64_v3"]
    source, assembly = tmp_path / "sum.c", tmp_path / "sum.s"
    for body, is_fused in (("return a * b + c", True), ("float d = a * b; return d + c", False)):
        source.write_text(f"float f(float a, float b, float c) {{ {body}; }}\n")
        command = [*compiler, f"-ffp-contract={default}", *sources.FLAGS, "-Wno-error"]
        command += ["-S", str(source), "-o", str(assembly)]
        subprocess.run(command, check=True, cwd=sources.KERNELS, capture_output=True)
        assert ("vfmadd" in assembly.read_text()) is is_fused


def test_a_source_that_changed_makes_its_library_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    one = runnable()[0]
    library.load(one.name)
    assert sources.is_current(one)
    monkeypatch.setattr(sources, "source_digest", lambda _: "of another source")
    assert not sources.is_current(one)


def test_every_source_and_header_counts_and_so_do_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runnable()[0]
    shutil.copytree(sources.KERNELS, tmp_path / "kernels", ignore=shutil.ignore_patterns("lib"))
    monkeypatch.setattr(sources, "KERNELS", tmp_path / "kernels")
    digests = {sources.source_digest(one)}
    for path in (*sources.sources(), *sources.headers()):
        path.write_text(path.read_text() + "\n")
        digests.add(sources.source_digest(one))
    monkeypatch.setattr(sources, "FLAGS", ("-O1",))
    digests.add(sources.source_digest(one))
    assert len(digests) == 2 + len(sources.sources()) + len(sources.headers())


def test_a_checkout_without_a_compiler_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(builder, "find_spec", lambda _: None)
    monkeypatch.setattr(builder, "is_current", lambda _: False)
    with pytest.raises(MissingDependencyError) as refused:
        builder.build(runnable()[:1])
    assert "scripts/setup" in refused.value.hint


def test_a_source_that_does_not_compile_is_named_with_what_the_compiler_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "kernels" / "norm" / "cpu.c"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("int unused(void) { int x; return 0; }\n")
    monkeypatch.setattr(builder, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(builder, "OBJECTS", tmp_path)
    monkeypatch.setattr(builder, "is_current", lambda _: False)
    monkeypatch.setattr(builder, "sources", lambda: [wrong])
    with pytest.raises(NativeLibraryError, match=r"norm/cpu\.c:1.*unused variable 'x'"):
        builder.build(runnable()[:1])


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_an_installation_that_lacks_libraries_names_them(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "has_sources", lambda: False)
    missing = of_architecture(architecture)[0]
    monkeypatch.setattr(library, "is_current", lambda one: one is not missing)
    with pytest.raises(NativeLibraryError, match=rf"{architecture}: {missing.file_name}$"):
        libraries(architecture)


def copy_of_sources(folder: Path) -> Path:
    shutil.copytree(ROOT / "zse", folder / "zse", ignore=shutil.ignore_patterns("lib", "*.pyc"))
    return folder


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_same_sources_give_the_same_bytes_in_any_folder(tmp_path: Path) -> None:
    copy = copy_of_sources(tmp_path / "a folder with another name")
    one = of_architecture("amd64")[-1]
    code = "import sys; from zse.kernels.native.build import build; "
    code += "from zse.kernels.native.instructions import instructions_named as named; "
    code += "print(*build([named(sys.argv[1])]))"
    # What the compiler itself keeps of earlier calls is not there either.
    kept = {f"ZIG_{whose}_CACHE_DIR": str(tmp_path / "zig") for whose in ("GLOBAL", "LOCAL")}
    environment = {**os.environ, **kept, "PYTHONPATH": str(copy)}
    built = subprocess.run(
        [sys.executable, "-c", code, one.name],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        cwd=copy,
    ).stdout.strip()
    assert built.startswith(str(copy))
    (here,) = builder.build([one])
    assert here.read_bytes() == Path(built).read_bytes()
    assert str(ROOT).encode() not in here.read_bytes()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_wheel_has_every_library_and_no_source_and_loads_them(tmp_path: Path) -> None:
    libraries("amd64")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    for one in ALL:
        name = f"zse/kernels/native/lib/{one.architecture}/{one.file_name}"
        assert archive.getinfo(name).file_size > 4096
    assert not [name for name in names if name.endswith((".c", ".h", ".digest"))]
    code = "from zse.kernels.native.library import load; print(load().path)"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
    ).stdout
    assert loaded.startswith(str(tmp_path / "installed"))


def test_a_file_is_compiled_again_when_a_header_changed_that_it_includes_through_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "norm/cpu.c": '#include "near.h"\nint three(void) { return THREE; }\n',
        "norm/near.h": '#include "far.h"\n',
        "native/far.h": "#define THREE 3\n",
        "native/other.h": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(builder, "KERNELS", tmp_path)
    monkeypatch.setattr(builder, "OBJECTS", tmp_path)

    def compiled() -> Path:
        return builder._compile(
            builder.compiler_command(), runnable()[0], tmp_path / "norm" / "cpu.c"
        )

    first = compiled()
    (tmp_path / "native" / "other.h").write_text("#define FOUR 4\n")
    assert compiled() == first
    (tmp_path / "native" / "far.h").write_text("#define THREE 4\n")
    assert compiled() != first
