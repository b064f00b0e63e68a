"""Loading the processor's kernels."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from driven_steps import host_compiler

from zse.device.probe import probe
from zse.device.processor import architecture, features
from zse.errors import UsageError
from zse.kernels.errors import InstructionsRefused, NativeLibraryError
from zse.kernels.native import codes, library, structs
from zse.kernels.native.instructions import ALL
from zse.kernels.native.library import Library, load, runnable, spin_nanoseconds
from zse.kernels.native.sources import library_path
from zse.options import CPU_INSTRUCTIONS

if TYPE_CHECKING:
    from enum import IntEnum

HEADER = Path(structs.__file__).with_name("zse.h")


def test_the_best_library_that_this_processor_runs_is_loaded_once() -> None:
    loaded = load()
    assert loaded.instructions == runnable()[0].name
    assert loaded is load()


@pytest.mark.parametrize("name", [one.name for one in runnable()])
def test_every_library_that_this_processor_runs_can_be_asked_for(name: str) -> None:
    assert load(name).instructions == name


def test_the_option_takes_the_names_of_all() -> None:
    assert ("auto", *(one.name for one in ALL)) == CPU_INSTRUCTIONS


def test_instructions_of_another_processor_are_refused_with_those_that_it_has() -> None:
    other = next(one for one in ALL if one.architecture != architecture())
    with pytest.raises(UsageError, match=f"{other.name!r}, but this processor") as refused:
        load(other.name)
    assert runnable()[0].name in refused.value.hint


def test_instructions_that_the_processor_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    best = runnable()[0]
    missing = sorted(best.features)[0]
    monkeypatch.setattr(library, "features", lambda: best.features - {missing})
    with pytest.raises(UsageError, match=f"lacks {missing}"):
        load.__wrapped__(best.name)


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    path = tmp_path / "libzse-avx2.so"
    path.write_bytes(b"\x7fELF cut short")
    with pytest.raises(NativeLibraryError, match=str(path)):
        Library(path)


def test_a_library_with_other_structures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Larger(structs.Step):
        _fields_ = (("more", ctypes.c_int64),)

    monkeypatch.setattr(structs, "ALL", (*structs.ALL[:-1], Larger))
    with pytest.raises(NativeLibraryError, match="another version of zse"):
        Library(library_path(runnable()[0]))


def test_an_installation_without_libraries_says_which_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "is_current", lambda _: False)
    monkeypatch.setattr(library, "has_sources", lambda: False)
    with pytest.raises(NativeLibraryError, match=runnable()[0].file_name):
        load.__wrapped__()


def test_a_processor_that_zse_has_no_kernels_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "architecture", lambda: "riscv64")
    with pytest.raises(NativeLibraryError, match="riscv64"):
        load.__wrapped__()


def test_instructions_that_are_named_but_refused_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    best, second = runnable()[:2]

    def opened(path: Path) -> Library:
        if path == library_path(best):
            raise InstructionsRefused(f"refused {path.name}")
        return Library(path)

    monkeypatch.setattr(library, "Library", opened)
    assert load.__wrapped__().instructions == second.name
    assert f"refused {best.file_name}" in caplog.text


@pytest.mark.skipif(architecture() != "amd64", reason="AVX-512 is amd64's")
def test_a_library_whose_instructions_are_refused_says_so_and_nothing_dies(tmp_path: Path) -> None:
    path = tmp_path / "libzse-avx512.so"
    native = HEADER.parent
    flags = ["-std=gnu17", "-O3", "-shared", "-fPIC", "-mavx512vnni", "-mavx512f"]
    compile_library = [*host_compiler(), *flags, str(native / "probe.c"), "-o", str(path)]
    subprocess.run(compile_library, check=True)
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).zse_probe())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) == ("avx512_vnni" in features())


@pytest.mark.parametrize("structure", structs.ALL, ids=lambda one: one.__name__)
def test_a_structure_has_the_fields_of_the_header_in_its_order(
    structure: type[ctypes.Structure],
) -> None:
    header = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    name = re.sub(r"(?<!^)([A-Z])", r"_\1", structure.__name__).lower()
    body = re.search(rf"struct zse_{name} \{{(.*?)\n\}};", header, re.DOTALL)
    assert body
    fields = re.findall(r"(\w+)(?:\[\w+\])?;", body[1])
    assert [entry[0] for entry in structure._fields_] == fields


@pytest.mark.parametrize(
    ("enum", "prefix"),
    [
        (codes.Scheme, "ZSE_"),
        (codes.CacheDtype, "ZSE_CACHE_"),
        (codes.Activation, "ZSE_"),
        (codes.Register, "ZSE_"),
        (codes.Kind, "ZSE_OP_"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_an_enumeration_has_the_names_of_the_header_in_its_order(
    enum: type[IntEnum], prefix: str
) -> None:
    header = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    name = re.sub(r"(?<!^)([A-Z])", r"_\1", enum.__name__).lower()
    body = re.search(rf"enum zse_{name} \{{(.*?)\}};", header, re.DOTALL)
    assert body
    names = [word for word in re.findall(r"\w+", body[1]) if "_NUM_" not in word]
    assert [prefix + member.name for member in enum] == names
    assert [member.value for member in enum] == list(range(len(names)))


@pytest.mark.parametrize(
    "name", [name for name, value in vars(structs).items() if isinstance(value, int)]
)
def test_a_number_is_the_header_s(name: str) -> None:
    found = re.search(rf"#define ZSE_{name} (.+)", HEADER.read_text())
    assert found
    left, _, shift = found[1].strip("()").partition(" << ")
    assert getattr(structs, name) == int(left) << int(shift or 0)


@pytest.mark.parametrize(
    ("cores", "quota", "threads", "spins"),
    [(4, 0.0, 4, True), (4, 0.0, 5, False), (4, 2.0, 2, True), (4, 1.5, 2, False)],
)
def test_threads_spin_only_where_all_of_them_run_at_once(
    cores: int, quota: float, threads: int, spins: bool
) -> None:
    machine = replace(probe(), physical_cores=cores, cpu_quota=quota)
    assert (spin_nanoseconds(machine, threads) > 0) is spins
