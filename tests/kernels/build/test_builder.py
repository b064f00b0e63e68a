"""The builder compiles real kernels for real architectures; no GPU is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from sample_packs import SCALE

from zse.errors import MissingDependencyError
from zse.kernels.build import pool
from zse.kernels.build.builder import BuildStep, BuiltPack, build_pack
from zse.kernels.errors import KernelRule
from zse.kernels.pack import KernelPack
from zse.kernels.targets import TARGETS
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = Path(__file__).parent / "kernels_for_tests"
PRODUCT = Kernel(
    name="sample.product",
    module="sample_kernels",
    function="product",
    arguments=(pointer("left", "bf16"), pointer("right", "bf16"), pointer("outputs", "fp32")),
)
SMALL = variant(SCALE, BLOCK=128, num_warps=1)
DOT = variant(PRODUCT, BLOCK=64)

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def build(
    cache: Path,
    *variants: Variant,
    target: str = "sm_90",
    sources: Path = SOURCES,
    keep_going: bool = False,
    processes: int = 2,
    progress: Callable[[BuildStep], None] = lambda _: None,
) -> BuiltPack:
    return build_pack(
        TARGETS[target],
        variants,
        source_digest="",
        cache_dir=cache,
        processes=processes,
        keep_going=keep_going,
        import_paths=[sources],
        progress=progress,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltPack:
    return build(tmp_path_factory.mktemp("cache"), SMALL, DOT)


@pytest.mark.slow
def test_an_entry_says_what_the_compiler_said(built: BuiltPack) -> None:
    pack = KernelPack.open(built.data)
    pack.verify()
    assert (pack.target, len(pack)) == ("sm_90", 2)
    assert re.match(r"3\.\d+", pack.provenance["triton"])
    assert re.match(r"12\.\d+", pack.provenance["ptxas"])
    small, dot = pack.entry(SMALL.key), pack.entry(DOT.key)
    assert small.entry == "scale"
    assert small.arguments == tuple((a.name, a.type) for a in SCALE.arguments)
    assert small.aligned == {"inputs", "outputs"}
    assert (small.num_warps, small.num_ctas, small.shared_bytes) == (1, 1, 0)
    assert small.programmatic
    assert dict(small.constants) == {"BLOCK": 128, "PDL": True, "PLAIN": False}
    assert dot.shared_bytes >= 64 * 64 * 2
    assert not dot.programmatic  # it has no such parameter
    assert 0 < small.registers <= 255


@pytest.mark.slow
def test_the_code_has_the_parameters_that_the_entry_promises(
    built: BuiltPack, tmp_path: Path
) -> None:
    path = tmp_path / "a.cubin"
    entry = KernelPack.open(built.data).entry(SMALL.key)
    path.write_bytes(entry.image)
    tool = pool.require_triton() / "backends" / "nvidia" / "bin" / "cuobjdump"
    text = subprocess.run([tool, "-elf", path], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"Ordinal : 0x(\w+)\s+Offset  : 0x(\w+)\s+Size    : 0x(\w+)", text)
    places = sorted(tuple(int(number, 16) for number in numbers) for numbers in found)
    arguments = [(0, 0, 8), (1, 8, 8), (2, 16, 4), (3, 20, 4)]
    assert places == [*arguments, (4, 24, 8), (5, 32, 8)]
    assert entry.trailing_pointers == 2
    assert "sm=90a" in text


@pytest.mark.slow
def test_two_builds_in_two_folders_give_the_same_bytes(built: BuiltPack, tmp_path: Path) -> None:
    elsewhere = tmp_path / "a folder of another name"
    shutil.copytree(SOURCES, elsewhere)
    again = build(tmp_path / "cache", DOT, SMALL, sources=elsewhere)
    assert again.data == built.data
    for path in (SOURCES, elsewhere, Path.cwd(), tmp_path):
        assert str(path).encode() not in again.data


@pytest.mark.slow
def test_workers_their_number_and_what_was_found_change_no_byte(
    built: BuiltPack, tmp_path: Path
) -> None:
    alone = build(tmp_path, DOT, processes=1)
    assert (alone.found, len(alone.kernels)) == (0, 1)
    half = build(tmp_path, SMALL, DOT, processes=1)
    whole = build(tmp_path, DOT, SMALL, processes=3)
    assert (half.found, whole.found) == (1, 2)
    assert half.data == whole.data == built.data


@pytest.mark.slow
def test_an_interrupted_build_goes_on_where_it_stopped(built: BuiltPack, tmp_path: Path) -> None:
    def stop(step: BuildStep) -> None:
        if step.key:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, SMALL, DOT, processes=1, progress=stop)
    steps: list[BuildStep] = []
    again = build(tmp_path, SMALL, DOT, processes=1, progress=steps.append)
    assert again.found == 1
    assert [(step.key, step.done, step.total) for step in steps] == [("", 1, 2), (DOT.key, 2, 2)]
    assert again.data == built.data


@pytest.mark.slow
def test_the_callers_triton_variables_change_nothing(
    built: BuiltPack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    monkeypatch.setenv("PTXAS_OPTIONS", "--opt-level 0")
    assert build(tmp_path, SMALL, DOT).data == built.data
    assert os.environ["TRITON_INTERPRET"] == "1"


@pytest.mark.slow
def test_an_architecture_before_9_0_gets_kernels_that_wait_their_turn(tmp_path: Path) -> None:
    pack = KernelPack.open(build(tmp_path, SMALL, target="sm_80").data)
    assert pack.target == "sm_80"
    assert not pack.entry(SMALL.key).programmatic
    assert dict(pack.entry(SMALL.key).constants)["PDL"] is False


@pytest.mark.slow
def test_a_variant_with_too_much_shared_memory_is_left_out_with_the_reason(tmp_path: Path) -> None:
    large = variant(PRODUCT, BLOCK=256, num_warps=8)
    made = build(tmp_path, large, target="sm_86")
    assert "sm_86 has 101376" in made.skipped[large.key]
    assert KernelPack.open(made.data).missing([large]) == ()


def test_what_is_written_for_another_architecture_is_left_out_uncompiled(tmp_path: Path) -> None:
    odd = variant(
        replace(PRODUCT, name="sample.odd", module="nowhere", targets=("sm_90",)), BLOCK=64
    )
    made = build(tmp_path, odd, target="sm_80")
    assert made.skipped == {odd.key: "is for sm_90"}
    assert KernelPack.open(made.data).missing([odd]) == ()


@pytest.mark.slow
def test_what_does_not_compile_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    lacking = variant(SCALE)
    unknown = variant(SCALE, BLOCK=128, TILE=4)
    odd = variant(SCALE, BLOCK=100)
    absent = variant(Kernel(name="a.b", module="no_such_module", function="f", arguments=()))
    swapped = variant(
        Kernel(
            name="a.c",
            module="sample_kernels",
            function="product",
            arguments=(pointer("outputs", "fp32"), pointer("left", "bf16"), number("right")),
        ),
        BLOCK=16,
    )
    broken = [lacking, unknown, odd, absent, swapped]
    with breaks(KernelRule.BUILD_FAILED, match=r"5 of 6 kernels do not compile for sm_90") as bad:
        build(tmp_path, SMALL, *broken)
    assert "--keep-going" in bad.value.hint
    made = build(tmp_path, SMALL, *broken, keep_going=True)
    assert list(KernelPack.open(made.data)) == [SMALL.key]
    assert "lacking ['BLOCK']" in made.failed[lacking.key]
    assert "unknown ['TILE']" in made.failed[unknown.key]
    assert "no_such_module" in made.failed[absent.key]
    assert "the function takes" in made.failed[swapped.key]
    assert "power of 2" in made.failed[odd.key]


@pytest.mark.slow
def test_a_compiler_that_dies_fails_its_kernel_and_no_other(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(SOURCES, sources)
    (sources / "deadly.py").write_text("import os\nos._exit(7)\n")
    deadly = variant(Kernel(name="a.deadly", module="deadly", function="f", arguments=()))
    made = build(tmp_path / "cache", deadly, SMALL, sources=sources, keep_going=True)
    assert made.failed == {deadly.key: "the compiler died: exit 7"}
    assert list(KernelPack.open(made.data)) == [SMALL.key]


def test_without_triton_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError) as missing:
        pool.require_triton()
    assert "[kernels]" in missing.value.hint
