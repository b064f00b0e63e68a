"""`zse kernels` for people and for scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from sample_packs import SCALE, VARIANTS, sample_pack

from zse.cli import run
from zse.cli.kernels_show import PlainLines
from zse.format.reader import ZSEReader
from zse.kernels import catalog
from zse.kernels.build import builder, pool
from zse.kernels.build.builder import BuildStep
from zse.kernels.pack import KernelPack
from zse.kernels.variant import Variant, variant

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))

import small_file

LARGE = variant(SCALE, BLOCK=65536)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    path = tmp_path / "sm_90.zkp"
    path.write_bytes(sample_pack(skipped={LARGE.key: "too large for it"}))
    return path


@pytest.fixture
def fake_compiler(monkeypatch: pytest.MonkeyPatch) -> list[pool.Answer]:
    """Answers instead of a compiler: the variant LARGE does not compile."""
    answers: list[pool.Answer] = []

    def run_jobs(jobs: list[dict], *, progress, **_: object) -> None:
        for job in jobs:
            Path(job["output"]).write_bytes(b"\x7fELF" + job["key"].encode())
            facts = {
                "entry": job["function"],
                "num_ctas": 1,
                "shared_bytes": 1024,
                "global_scratch_bytes": 0,
                "global_scratch_align": 1,
                "profile_scratch_bytes": 0,
                "programmatic": job["target_constants"]["PDL"],
                "cooperative": False,
                "trailing_pointers": 2,
                "registers": 40,
                "stack_bytes": 0,
                **{name: job[name] for name in ("num_warps", "num_stages", "constants")},
            }
            error = "CompilationError: no" if job["key"] == LARGE.key else ""
            answers.append(pool.Answer(job=job, facts=facts, error=error))
            progress(answers[-1])

    versions = {"triton": "3.9.0", "ptxas": "12.9.86"}
    monkeypatch.setattr(builder, "compiler_environment", lambda *_: {})
    monkeypatch.setattr(builder, "ask_versions", lambda *_: versions)
    monkeypatch.setattr(builder, "run_jobs", run_jobs)
    return answers


def use(monkeypatch: pytest.MonkeyPatch, *variants: Variant) -> None:
    monkeypatch.setattr(catalog, "all_variants", lambda: variants)


def test_build_writes_a_pack_for_each_architecture_and_says_so(
    tmp_path: Path,
    fake_compiler: list[pool.Answer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(monkeypatch, *VARIANTS)
    out = tmp_path / "packs"
    assert run(["kernels", "build", "--gpu", "sm_90", "--gpu", "sm_80", "-o", str(out)]) == 0
    assert [path.name for path in sorted(out.iterdir())] == ["sm_80.zkp", "sm_90.zkp"]
    assert KernelPack.open(out / "sm_90.zkp").entry(VARIANTS[0].key).programmatic
    assert not KernelPack.open(out / "sm_80.zkp").entry(VARIANTS[0].key).programmatic
    text = capsys.readouterr().out
    assert "2 kernels for sm_90" in text
    assert "sample.scale" in text


def test_build_prints_one_json_object(
    tmp_path: Path,
    fake_compiler: list[pool.Answer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(monkeypatch, *VARIANTS, LARGE)
    path = tmp_path / "one.zkp"
    command = ["kernels", "build", "--gpu", "sm_90", "-o", str(path), "--json"]
    assert run(command) == 12
    assert not path.exists()
    assert "CompilationError" in capsys.readouterr().err
    assert run([*command, "--keep-going"]) == 0
    report = json.loads(capsys.readouterr().out)["packs"]
    assert [pack["path"] for pack in report] == [str(path)]
    assert report[0]["kernels"] == 2
    assert report[0]["bytes"] == path.stat().st_size
    assert report[0]["failed"] == {LARGE.key: "CompilationError: no"}


def test_a_pack_that_is_there_stays_unless_told(
    tmp_path: Path,
    fake_compiler: list[pool.Answer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(monkeypatch, *VARIANTS)
    (tmp_path / "sm_80.zkp").write_bytes(b"mine")
    command = ["kernels", "build", "--gpu", "sm_90", "--gpu", "sm_80", "-o", str(tmp_path)]
    assert run(command) == 2
    assert "--force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["sm_80.zkp"]
    assert run([*command, "--force"]) == 0
    assert KernelPack.open(tmp_path / "sm_80.zkp").target == "sm_80"


def test_build_for_nothing_or_for_an_unknown_gpu_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "build", "-o", str(tmp_path)]) == 2
    assert run(["kernels", "build", "--gpu", "sm_35", "-o", str(tmp_path)]) == 2
    assert "sm_80, sm_86, sm_89, sm_90" in capsys.readouterr().err
    two = ["kernels", "build", "--gpu", "sm_80", "--gpu", "sm_90"]
    assert run([*two, "-o", str(tmp_path / "one.zkp")]) == 2
    assert "Name a folder" in capsys.readouterr().err


def test_list_shows_every_kernel_and_what_was_left_out(
    pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "list", str(pack)]) == 0
    text = capsys.readouterr().out
    for made in VARIANTS:
        assert made.key in text
    assert f"{LARGE.key}: too large for it" in text
    assert "12.9.86" in text
    assert "current  False" in text


def test_list_prints_one_json_object(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "list", str(pack), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == "sm_90"
    assert report["sources"] == "ab" * 32
    assert report["current"] is False
    assert report["skipped"] == {LARGE.key: "too large for it"}
    assert [kernel["key"] for kernel in report["kernels"]] == sorted(v.key for v in VARIANTS)


def test_verify_says_that_a_pack_is_whole_or_what_is_wrong_with_it(
    pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "verify", str(pack)]) == 0
    assert "2 kernels for sm_90" in capsys.readouterr().out
    data = bytearray(pack.read_bytes())
    data[-200] ^= 1
    pack.write_bytes(data)
    assert run(["kernels", "verify", str(pack)]) == 12
    said = capsys.readouterr().err
    assert "SHA-256" in said
    assert "build it again" in said


def test_add_puts_a_pack_into_a_model_file(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "small.zse"
    small_file.write(model)
    assert run(["kernels", "add", str(model), str(pack)]) == 0
    assert "kernels/sm_90" in capsys.readouterr().out
    with ZSEReader(model) as reader:
        reader.verify()
        assert list(KernelPack.open(reader.section("kernels/sm_90")))
    pack.write_bytes(pack.read_bytes()[:-256])
    before = model.read_bytes()
    assert run(["kernels", "add", str(model), str(pack)]) == 12
    assert model.read_bytes() == before


def test_progress_without_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = iter([0.0, 1.0, 5.0, 12.0, 13.0, 200.0])
    show = PlainLines("compiling for sm_90", clock=lambda: next(times))
    for done, key in ((5, ""), (6, "a"), (7, "b"), (8, "c"), (9, "d")):
        show(BuildStep(key=key, done=done, total=20, found=5))
    assert capsys.readouterr().err.splitlines() == [
        "compiling for sm_90: 20 kernels, 5 found",
        "compiling for sm_90: 7 of 20 kernels, about 78 s left",
        "compiling for sm_90: 9 of 20 kernels, about 9 min left",
    ]
