"""`zse kernels tune` on the stub driver: what is launched, what is kept, what is given back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from sample_packs import PROVENANCE, facts
from stub_libcuda import Stub, gpu, image, stub

from zse.cli import kernels_tune, run
from zse.cli.kernels_tune import Bench, Timing, tune
from zse.device.cuda.gpu import Gpu
from zse.kernels.build.writer import CompiledKernel, pack_bytes
from zse.kernels.linear.plan import LinearPlan, candidates
from zse.kernels.linear.variants import VARIANTS
from zse.kernels.linear.weight import LinearWeight
from zse.kernels.pack import KernelPack
from zse.kernels.targets import TARGETS
from zse.kernels.tuning import read_tuning

if TYPE_CHECKING:
    from pathlib import Path

    from zse.kernels.variant import Variant

__all__ = ["gpu", "stub"]
COLUMNS, ROWS = 256, 512


def compiled(made: Variant) -> CompiledKernel:
    """A kernel that the stub driver can load."""
    sizes = [8 if a.is_pointer or a.type == "i64" else 4 for a in made.arguments] + [8, 8]
    name = made.kernel.function
    return CompiledKernel(
        key=made.key,
        facts=facts(made, shared_bytes=0),
        cubin=image(f"{name}={','.join(map(str, sizes))}"),
    )


@pytest.fixture(scope="module")
def pack() -> bytes:
    made = [compiled(variant) for variant in VARIANTS]
    return pack_bytes(TARGETS["sm_90"], made, provenance=PROVENANCE, skipped={})


@pytest.mark.parametrize("scheme", ["int4", "nf4", "mxfp4", "int8", "bf16"])
def test_every_candidate_is_timed_over_copies_and_all_is_given_back(
    scheme: str, gpu: Gpu, stub: Stub, pack: bytes
) -> None:
    before = stub.live()
    bench = Bench(gpu, KernelPack.open(pack), repeats=1)
    timings = bench.measure(scheme, COLUMNS, ROWS, [1, 8])
    bench.close()
    kinds = 1 if scheme == "bf16" else 2
    assert len(timings) == 2 * kinds
    assert {timing.shape for timing in timings} == {"256x512"}
    assert all(timing.best_seconds > 0 for timing in timings)
    assert all(timing.best_seconds <= timing.planned_seconds for timing in timings)
    launched = {launch.name for launch in stub.launches()}
    form = LinearWeight(
        scheme=scheme,
        rows=ROWS,
        columns=COLUMNS,
        weights=0,
        group_size=kernels_tune.DEFAULT_GROUP_SIZE.get(scheme, 0),
    )
    for quantized in [False, True][:kinds]:
        for plan in candidates(form, 1, quantized=quantized):
            assert plan.variant.kernel.function in launched
    modules = len({timing.best.variant.key for timing in timings})
    assert stub.live() >= before + modules  # code stays loaded until the GPU is closed


def timing(best_seconds: float, planned_seconds: float) -> Timing:
    plans = [LinearPlan(variant=variant, splits=2, rows=1, columns=512) for variant in VARIANTS[:2]]
    return Timing(
        table="linear.int4.g128.a8.rows1",
        shape="256x512",
        best=plans[0],
        best_seconds=best_seconds,
        planned=plans[1],
        planned_seconds=planned_seconds,
    )


def test_only_choices_that_beat_the_planner_enter_the_table() -> None:
    class Measured:
        def measure(self, *_: object) -> list[Timing]:
            return [timing(9.0, 10.0)]

    assert timing(9.9, 10.0).choice is None
    seen: list[Timing] = []
    tuning = tune(
        Measured(),  # type: ignore[arg-type]
        "NVIDIA H200",
        schemes=["int4"],
        shapes=[(256, 512)],
        tokens=[1],
        progress=seen.append,
    )
    assert tuning.lookup("linear.int4.g128.a8.rows1", "256x512") == {
        "variant": VARIANTS[0].key,
        "splits": 2,
    }
    assert len(seen) == 1


def test_the_command_writes_a_table_that_can_be_read(
    stub: Stub,
    pack: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_gpu = Gpu.open
    monkeypatch.setattr(Gpu, "open", lambda index: open_gpu(index, driver=stub.driver()))
    (tmp_path / "p.zkp").write_bytes(pack)
    out = tmp_path / "table.json"
    command = ["kernels", "tune", "--kernels", str(tmp_path / "p.zkp"), "-o", str(out)]
    options = ["--scheme", "int8", "--shape", "256x512", "--rows", "1"]
    assert run([*command, *options]) == 0
    text = capsys.readouterr().out
    assert "linear.int8.a8.rows1" in text
    assert "256x512" in text
    read_tuning(out, json.loads(out.read_text())["device"])
    assert run([*command, "--shape", "256"]) == 2
