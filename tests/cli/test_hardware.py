"""`zse hardware` on the stub driver: a report whatever state the machine is in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from sample_packs import sample_pack
from stub_libcuda import stub

from zse.cli import run
from zse.cli.hardware_report import SCHEMES, _models, well_known_estimates
from zse.device.processor import architecture
from zse.kernels.catalog import all_variants
from zse.kernels.native.library import load
from zse.models.well_known import WELL_KNOWN

if TYPE_CHECKING:
    from pathlib import Path

    from stub_libcuda import Stub

__all__ = ["stub"]


@pytest.fixture
def machine(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """The stub driver is this machine's."""
    monkeypatch.setattr("zse.device.cuda.library.LIBRARY_NAME", str(stub.path))
    return stub


def read_report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["hardware", "--json", *arguments]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.usefixtures("machine")
def test_json_describes_machine_gpu_models_and_kernels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_TOTAL", str(24 * 10**9))
    report = read_report(capsys)
    assert report["cpu"]["physical_cores"] >= 1
    assert report["memory"]["total_bytes"] >= report["memory"]["available_bytes"] > 0
    assert report["cuda"] == {"driver_version": "12.4", "problem": None}
    (gpu,) = report["gpus"]
    assert (gpu["name"], gpu["capability"], gpu["architecture"]) == ("Stub GPU", "9.0", "sm_90")
    assert (gpu["total_bytes"], gpu["free_bytes"]) == (24 * 10**9, 24 * 10**9)
    assert (gpu["multiprocessors"], gpu["driver_version"]) == (132, "12.4")
    assert gpu["problem"] is None
    assert set(gpu["kernels"]) == {"pack", "num_kernels", "missing", "skipped", "problem"}
    fits = {(fit["model"], fit["quantization"]): fit["fits"] for fit in gpu["models"]}
    assert set(fits) == {(model, scheme) for model in WELL_KNOWN for scheme in SCHEMES}
    assert fits["qwen2.5-7b", "bf16"]
    assert fits["qwen2.5-32b", "int4"]
    assert not fits["qwen2.5-32b", "int8"]


@pytest.mark.usefixtures("machine")
def test_people_read_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hardware"]) == 0
    out = capsys.readouterr().out
    assert "driver   CUDA 12.4" in out
    assert "gpu 0    Stub GPU, sm_90, 1.0 GiB, 1.0 GiB free, 132 multiprocessors, 4.92 TB/s" in out
    assert "models in the free memory of GPU 0, with 4096 tokens of context" in out
    assert "qwen2.5-72b" in out


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ZSE_STUB_VERSION", "12000", "speaks CUDA 12.0; 12.3 or newer is needed"),
        ("ZSE_STUB_DEVICES", "0", "shows no GPU"),
        ("ZSE_STUB_MODE", "2", "PROHIBITED"),
        ("ZSE_STUB_FAIL", "cuDevicePrimaryCtxRetain:46", "busy or unavailable"),
        ("ZSE_STUB_FAIL", "cuDevicePrimaryCtxRetain:2", "too little free memory"),
    ],
)
def test_what_is_wrong_is_said_with_a_way_out(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    words: str,
) -> None:
    monkeypatch.setenv(name, value)
    report = read_report(capsys)
    problem = report["cuda"]["problem"] or report["gpus"][0]["problem"]
    assert words in problem["message"]
    assert problem["hint"]
    assert run(["hardware"]) == 0
    out = capsys.readouterr().out
    assert problem["message"] in out
    assert problem["hint"] in out


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("link", "kind", "words"),
    [
        ("2", "nvlink", "links    NVLink: 0-1, 0-2, 1-2\n"),
        ("0", "none", "links    none, so one model cannot be on both: 0-1, 0-2, 1-2\n"),
    ],
)
def test_links_between_gpus_are_shown(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    link: str,
    kind: str,
    words: str,
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "3")
    monkeypatch.setenv("ZSE_STUB_LINK", link)
    links = read_report(capsys)["links"]
    assert links[0] == {"ordinal": 0, "other": 1, "kind": kind, "performance_rank": 0}
    assert len(links) == 6
    assert run(["hardware"]) == 0
    assert words in capsys.readouterr().out


def test_the_processor_is_shown_with_the_instructions_of_its_kernels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    best = load().instructions
    assert read_report(capsys)["cpu"]["instructions"] == best
    assert run(["hardware"]) == 0
    assert f"kernels for {best}" in capsys.readouterr().out


def test_instructions_that_the_processor_lacks_are_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "neon" if architecture() == "amd64" else "sse4"
    monkeypatch.setenv("ZSE_CPU_INSTRUCTIONS", other)
    problem = read_report(capsys)["cpu"]["problem"]
    assert other in problem["message"]
    assert run(["hardware"]) == 0
    assert problem["hint"] in capsys.readouterr().out


def test_no_driver_leaves_the_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zse.device.cuda.library.LIBRARY_NAME", "no-such-libcuda.so")
    assert run(["hardware"]) == 0
    out = capsys.readouterr().out
    assert "driver   none" in out
    assert "no CUDA driver: no-such-libcuda.so" in out
    assert "models in this machine's memory, on the CPU" in out


@pytest.mark.usefixtures("machine")
def test_a_kernel_pack_that_is_not_there_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (gpu,) = read_report(capsys, "--kernels", str(tmp_path / "absent.zkp"))["gpus"]
    assert "absent.zkp" in gpu["kernels"]["problem"]["message"]
    assert run(["hardware", "--kernels", str(tmp_path / "absent.zkp")]) == 0
    assert "kernels  none" in capsys.readouterr().out


@pytest.mark.usefixtures("machine")
def test_a_gpu_without_a_pack_gets_the_command_that_builds_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("zse.kernels.find.SHIPPED", tmp_path)
    monkeypatch.setattr("zse.cli.hardware_report.find_spec", lambda _: True)  # of Triton
    monkeypatch.setenv("ZSE_STUB_CAPABILITY", "75")
    (gpu,) = read_report(capsys)["gpus"]
    assert "sm_80" in gpu["kernels"]["problem"]["hint"]
    monkeypatch.setenv("ZSE_STUB_CAPABILITY", "89")
    (gpu,) = read_report(capsys)["gpus"]
    assert "zse kernels build --gpu sm_89" in gpu["kernels"]["problem"]["hint"]


@pytest.mark.usefixtures("machine")
def test_what_a_pack_lacks_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pack = tmp_path / "sm_90.zkp"
    pack.write_bytes(sample_pack(skipped={"some.kernel[]w4s1": "needs another GPU"}))
    (gpu,) = read_report(capsys, "--kernels", str(pack))["gpus"]
    kernels = gpu["kernels"]
    assert (kernels["pack"], kernels["num_kernels"], kernels["problem"]) == (str(pack), 2, None)
    assert kernels["missing"] == [variant.key for variant in all_variants()]
    assert kernels["skipped"] == {"some.kernel[]w4s1": "needs another GPU"}
    assert run(["hardware", "--kernels", str(tmp_path)]) == 0
    assert f"{pack}: 2, {len(all_variants())} missing: " in capsys.readouterr().out


@pytest.mark.usefixtures("machine")
def test_a_pack_for_another_gpu_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pack = tmp_path / "other.zkp"
    pack.write_bytes(sample_pack("sm_80"))
    (gpu,) = read_report(capsys, "--kernels", str(pack))["gpus"]
    assert (
        "holds kernels for sm_80, but Stub GPU needs sm_90" in gpu["kernels"]["problem"]["message"]
    )


def test_a_child_process_finds_the_driver_by_its_usual_name_and_imports_no_torch(
    stub: Stub,
) -> None:
    code = (
        "import sys; from zse.cli import run; code = run(['hardware', '--json']); "
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stub.path.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gpus"][0]["name"] == "Stub GPU"


def test_a_model_takes_more_at_a_wider_scheme_and_keys_are_as_wide_on_a_cpu() -> None:
    gpu, cpu = well_known_estimates(on_gpu=True), well_known_estimates(on_gpu=False)
    for model in WELL_KNOWN:
        totals = [gpu[model, scheme].total_bytes for scheme in ("int4", "int8", "bf16")]
        assert totals == sorted(totals)
        assert gpu[model, "int4"].kv_bytes == cpu[model, "int4"].kv_bytes
    assert all(fit["fits"] for fit in _models(10**12, on_gpu=True))
    assert not any(fit["fits"] for fit in _models(0, on_gpu=False))
