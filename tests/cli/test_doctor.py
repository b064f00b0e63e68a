"""`zse doctor`: each thing that may be wrong is found, told in a line, and has its fix."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from random_files import write_random_file
from stub_libcuda import stub

from zse.cli import run
from zse.cli.doctor import _is_image
from zse.engine.requirements import facts_of_file
from zse.format import ZSEReader
from zse.kernels.native.library import load
from zse.models.rank_memory import estimate_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stub_libcuda import Stub

__all__ = ["stub"]
SHAPE = {
    "num_layers": 1,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 64,
    "vocab_size": 72,
}


@pytest.fixture
def look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Run the command on a machine of its own; return the exit code and findings by check."""
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ZSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ZSE_PORT", "0")
    monkeypatch.chdir(tmp_path)

    def run_it(*words: str, **environment: str) -> Any:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = run(["doctor", "--json", *words])
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] == (code == 0)
        found: dict[str, list[dict[str, str]]] = {}
        for finding in report["findings"]:
            found.setdefault(finding["check"], []).append(finding)
        return code, found

    return run_it


def test_a_machine_that_can_serve_has_no_problem(look: Any) -> None:
    code, found = look()
    assert code == 0
    assert {"zse", "settings", "memory", "limits", "cache", "gpu", "cpu", "model"} <= set(found)
    assert all(one["fix"] for group in found.values() for one in group if one["status"] != "ok")


def test_the_kernels_for_this_processor_are_named_or_what_it_lacks(look: Any) -> None:
    _, found = look()
    assert f"libzse-{load().instructions}.so" in found["cpu"][0]["found"]
    code, found = look(ZSE_CPU_INSTRUCTIONS="i8mm" if load().instructions != "i8mm" else "avx2")
    assert code == 1
    assert found["cpu"][0]["status"] == "problem"


def test_a_misspelt_variable_is_named_with_the_one_that_was_meant(look: Any) -> None:
    _, found = look(ZSE_MAX_CONTEX="4096")
    (finding,) = found["settings"]
    assert finding["found"] == "nothing reads the variable ZSE_MAX_CONTEX"
    assert finding["fix"] == "Did you mean ZSE_MAX_CONTEXT?"


def test_settings_that_cannot_be_read_are_a_finding_and_the_rest_is_looked_at(look: Any) -> None:
    code, found = look(ZSE_PORT="many")
    assert code == 1
    assert "ZSE_PORT" in found["settings"][0]["found"]
    assert found["memory"][0]["status"] == "ok"


def test_a_model_that_is_not_there_is_a_problem(look: Any) -> None:
    code, found = look("nowhere.zse")
    assert code == 1
    assert found["model"][0]["status"] == "problem"
    assert "nowhere.zse" in found["model"][0]["found"]


def test_a_file_that_is_no_model_is_told_by_its_broken_rule(look: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.zse").write_bytes(b"x" * 8192)
    code, found = look("broken.zse")
    assert code == 1
    assert found["model"][-1]["status"] == "problem"


def test_a_cache_that_is_a_file_is_a_problem_with_a_fix(look: Any, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    code, found = look()
    assert code == 1
    assert found["cache"][0]["status"] == "problem"
    assert "ZSE_CACHE_DIR" in found["cache"][0]["fix"]


def test_a_key_file_that_others_can_read_is_a_problem(look: Any, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    keys = tmp_path / "home" / "api_keys.json"
    keys.write_text('{"version": 1, "keys": []}')
    keys.chmod(0o644)
    code, found = look()
    assert code == 1
    assert found["access"][0]["status"] == "problem"


def test_a_certificate_that_is_missing_is_a_problem(look: Any) -> None:
    code, found = look(ZSE_SSL_CERTFILE="nowhere.pem")
    assert code == 1
    assert "nowhere.pem" in found["tls"][0]["found"]


def test_a_gpu_without_kernels_is_told_how_to_get_them(
    look: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zse.device.cuda.library.LIBRARY_NAME", str(stub.path))
    _, found = look()
    assert found["gpu 0"][0]["status"] == "ok"
    assert "zse kernels build" in found["kernels"][0]["fix"]


def test_a_model_of_several_devices_is_held_against_each_of_them(
    look: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_random_file(tmp_path / "model.zse", "int8", **SHAPE)
    monkeypatch.setattr("zse.doctor.model.probe", lambda: SimpleNamespace(available_memory_bytes=1))
    for ranks, words in ((1, "the machine has"), (2, "each of 2 devices has"), (7, "7 ranks")):
        _, found = look("model.zse", ZSE_DEVICE="cpu", ZSE_TENSOR_PARALLEL=str(ranks))
        (finding,) = found["fits"]
        assert finding["status"] == "problem"
        assert words in finding["found"]


def test_stages_are_held_against_their_devices_and_what_cannot_be_cut_is_said(
    look: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage takes less than the model, and half of the machine is each one's."""
    write_random_file(tmp_path / "model.zse", "int8", **{**SHAPE, "num_layers": 4})
    with ZSEReader(tmp_path / "model.zse") as reader:
        facts = facts_of_file(reader)
    whole, fullest = (
        estimate_rank(facts, "int8", 1, stages=stages, on_gpu=False, context_tokens=128)
        for stages in (1, 2)
    )
    assert 0.4 * whole.weights_bytes < fullest.weights_bytes < 0.8 * whole.weights_bytes
    assert fullest.kv_bytes * 2 == whole.kv_bytes
    for part, status in ((2, "ok"), (1, "problem")):
        memory = SimpleNamespace(available_memory_bytes=part * fullest.total_bytes)
        monkeypatch.setattr("zse.doctor.model.probe", lambda memory=memory: memory)
        asked = {"ZSE_DEVICE": "cpu", "ZSE_PIPELINE_PARALLEL": "2", "ZSE_MAX_CONTEXT": "128"}
        _, found = look("model.zse", **asked)
        assert found["fits"][0]["status"] == status
        assert "each of 2 devices has" in found["fits"][0]["found"]
    _, found = look("model.zse", ZSE_DEVICE="cpu", ZSE_PIPELINE_PARALLEL="5")
    assert "cannot be shared out among 5 stages" in found["fits"][0]["found"]


def test_more_gpus_than_there_are_is_a_problem(
    look: Any, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zse.device.cuda.library.LIBRARY_NAME", str(stub.path))
    monkeypatch.setattr("zse.doctor.model.cuda_driver_present", lambda: True)
    write_random_file(tmp_path / "model.zse", "int8", **SHAPE)
    _, found = look("model.zse", ZSE_DEVICE="cuda", ZSE_PIPELINE_PARALLEL="9")
    assert "9 devices are asked for, and" in found["fits"][0]["found"]


@pytest.mark.parametrize("reference", ["oci:dist", "tar:image.tar", "ghcr.io/me/llm:1", "a/b:c"])
def test_a_reference_is_an_image(reference: str) -> None:
    assert _is_image(reference)


@pytest.mark.parametrize("model", ["tiny", "Qwen/Qwen2.5-7B", "s3://bucket/m.zse", "./m.zse"])
def test_a_model_is_no_image(model: str) -> None:
    assert not _is_image(model)


def test_a_layout_that_is_not_there_is_a_problem(look: Any) -> None:
    code, found = look("oci:nowhere")
    assert code == 1
    assert found["image"][0]["status"] == "problem"
