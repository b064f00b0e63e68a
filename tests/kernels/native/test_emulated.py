"""Libraries of other processors under emulation, and sanitizers over all kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from driven_steps import check_agreement, compile_driver, cross_compiler, run_steps

from zse.device.processor import architecture
from zse.kernels.native.build import build
from zse.kernels.native.instructions import instructions_named
from zse.kernels.native.library import load
from zse.kernels.native.sources import sources

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
CASES = 40
SEEDS = (1, 2, 3, 4, 5)
SYSROOT = Path("/usr/aarch64-linux-gnu")
PROCESSORS = {
    "sse4": ("qemu-x86_64", "Nehalem"),
    "avx2": ("qemu-x86_64", "Haswell"),
    "neon": ("qemu-aarch64", "cortex-a53"),
    "dotprod": ("qemu-aarch64", "neoverse-n1"),
    "i8mm": ("qemu-aarch64", "max"),
}
"""An emulator, and the least processor that should run the library; no emulator has AVX-512 or VNNI."""
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
RUNS_HERE = pytest.mark.skipif(architecture() != "amd64", reason="compared with AVX2 and SSE4")


def missing(program: str) -> str:
    """Return why an emulator cannot be used, or nothing."""
    if shutil.which(program) is None:
        return f"{program} is missing: apt-get install qemu-user"
    if program == "qemu-aarch64" and not SYSROOT.exists():
        return f"{SYSROOT} is missing: apt-get install libc6-arm64-cross"
    return ""


@RUNS_HERE
@pytest.mark.parametrize("name", PROCESSORS)
def test_a_library_runs_on_the_least_processor_that_it_asks_for(tmp_path: Path, name: str) -> None:
    emulator, processor = PROCESSORS[name]
    if reason := missing(emulator):
        pytest.skip(reason)
    (path,) = build([instructions_named(name)])
    compiler, sysroot = [], []
    if emulator == "qemu-aarch64":
        compiler, sysroot = cross_compiler("aarch64-linux-gnu"), ["-L", SYSROOT]
    driver = compile_driver("kernels_driver.c", tmp_path / "driver", "-O1", path, compiler=compiler)
    library = ["-E", f"LD_LIBRARY_PATH={path.parent}"]
    command = [emulator, "-cpu", processor, *sysroot, *library, driver]
    here = compile_driver("kernels_driver.c", tmp_path / "here", "-O1", load().path)
    for seed in SEEDS:
        found = run_steps([*command, 2, CASES, seed])
        check_agreement(found, run_steps([here, 2, CASES, seed], load().path))


def emulated_steps(folder: Path, name: str, processor: str, seed: int) -> str:
    """Return what arm64's library computes on an emulated processor."""
    (path,) = build([instructions_named(name)])
    compiler = cross_compiler("aarch64-linux-gnu")
    driver = compile_driver("kernels_driver.c", folder / name, "-O1", path, compiler=compiler)
    library = ["-E", f"LD_LIBRARY_PATH={path.parent}"]
    emulator = ["qemu-aarch64", "-cpu", processor, "-L", SYSROOT, *library]
    return run_steps([*emulator, driver, 2, CASES, seed])


def test_products_of_matrices_have_the_bits_of_dot_products(tmp_path: Path) -> None:
    if reason := missing("qemu-aarch64"):
        pytest.skip(reason)
    for seed in SEEDS:
        found = {emulated_steps(tmp_path, name, "max", seed) for name in ("i8mm", "dotprod")}
        assert len(found) == 1


@RUNS_HERE
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_a_sanitizer_finds_nothing_in_any_kernel(
    tmp_path: Path, sanitizer: str, level: str
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: apt-get install gcc")
    flags = ["-O1", "-g", f"-march={level}", f'-DZSE_INSTRUCTIONS="{level}"']
    flags += SANITIZERS[sanitizer]
    driver = compile_driver(
        "kernels_driver.c", tmp_path / "driver", *flags, *sources(), compiler=["gcc"]
    )
    for seed in SEEDS:
        alone = run_steps([driver, 1, CASES, seed])
        assert run_steps([driver, 3, CASES, seed]) == alone


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_a_sanitizer_finds_nothing_in_the_pool(tmp_path: Path, sanitizer: str) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: apt-get install gcc")
    flags = ["-O1", "-g", "native/pool.c", *SANITIZERS[sanitizer]]
    driver = compile_driver("pool_driver.c", tmp_path / "driver", *flags, compiler=["gcc"])
    for threads in (2, 3, 8):
        for spin in (0, 50_000):
            assert run_steps([driver, threads, spin, 1000, threads]) == ""
    assert run_steps([driver, 4, 50_000, 5, 7, "many"]) == ""
