from __future__ import annotations

import json

import pytest

from zse.cli.hardware_report import well_known_estimates
from zse.deploy.sizing import need_of
from zse.device.facts import GpuInfo
from zse.device.survey import CudaSurvey, GpuState
from zse.engine import orchestrator
from zse.engine.orchestrator import IntelligenceOrchestrator, load_model
from zse.engine.requirements import read_facts
from zse.errors import ContextLengthError, DeviceError, UsageError
from zse.models.well_known import WELL_KNOWN
from zse.settings import load_settings


@pytest.fixture(autouse=True)
def private_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize(
    ("make", "quantization"),
    [
        (IntelligenceOrchestrator.min_memory, "int4"),
        (IntelligenceOrchestrator.balanced, "int8"),
        (IntelligenceOrchestrator.max_speed, "bf16"),
        (IntelligenceOrchestrator.auto, "bf16"),
    ],
)
def test_each_mode_has_its_scheme(random_checkpoint, make, quantization):
    made = make(random_checkpoint, device="cpu")
    assert made.quantization == quantization
    assert not made.is_loaded


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_budget_chooses_the_best_scheme_that_fits(tmp_path, device):
    (tmp_path / "config.json").write_text(json.dumps(WELL_KNOWN["qwen2.5-7b"]))
    large = IntelligenceOrchestrator.for_vram(1000, tmp_path, device=device)
    needs = large.estimate_requirements()
    totals = {name: e["total_bytes"] for name, e in needs["by_quantization"].items()}
    assert needs["chosen"] == "bf16"
    assert totals["bf16"] > totals["int8"] > totals["int4"]
    for name, total in totals.items():
        chosen = IntelligenceOrchestrator.for_vram((total + 1) / 1e9, tmp_path, device=device)
        assert chosen.quantization == name


def test_a_budget_that_nothing_fits_in_is_refused(random_checkpoint):
    with pytest.raises(DeviceError, match=r"0\.01 GB are available"):
        IntelligenceOrchestrator.for_vram(0.01, random_checkpoint)
    with pytest.raises(UsageError, match="vram_gb"):
        IntelligenceOrchestrator.for_vram(0, random_checkpoint)


def test_a_loaded_model_streams_text_or_returns_it_whole(random_zse):
    with IntelligenceOrchestrator.auto(random_zse, device="cpu") as orchestrator:
        options = {"max_tokens": 10, "temperature": 0.0, "ignore_eos": True}
        pieces = list(orchestrator.generate("Write", stream=True, **options))
        whole = orchestrator.generate("Write", stream=False, **options)
        assert "".join(pieces) == whole
        assert orchestrator.last_stats.generated_tokens == 10
        assert orchestrator.last_stats.prompt_tokens == 5
        assert orchestrator.last_stats.tokens_per_second > 0
        chat = [{"role": "user", "content": "hi"}]
        assert isinstance(orchestrator.generate(chat, stream=False, **options), str)
    assert not orchestrator.is_loaded


@pytest.mark.parametrize("context", [16, 64])
def test_without_a_limit_an_answer_ends_where_the_context_does(random_zse, context):
    made = IntelligenceOrchestrator.auto(random_zse, device="cpu", max_context=context)
    with made as orchestrator:
        pieces = orchestrator.generate("Write", temperature=0.0, ignore_eos=True)
        assert "".join(pieces)
        with pytest.raises(ContextLengthError):
            orchestrator.generate("Write", max_tokens=context, temperature=0.0, stream=False)


def test_a_checkpoint_is_converted_to_the_chosen_scheme(random_checkpoint):
    orchestrator = load_model(random_checkpoint, "min_memory", device="cpu")
    assert orchestrator.is_loaded
    assert orchestrator.generate("x", max_tokens=1, stream=False, ignore_eos=True) is not None
    orchestrator.close()


def test_generating_loads_the_model_when_nobody_has(random_zse):
    orchestrator = IntelligenceOrchestrator.auto(random_zse, device="cpu")
    options = {"max_tokens": 2, "stream": False, "ignore_eos": True}
    assert isinstance(orchestrator.generate("x", **options), str)
    assert orchestrator.is_loaded
    orchestrator.close()


def gpus_with(*free_bytes):
    """Return a survey of GPUs with so much memory free."""
    states = [gpu_state(ordinal, free) for ordinal, free in enumerate(free_bytes)]
    return CudaSurvey(driver_version="12.4", gpus=tuple(states), problem=None)


def test_several_gpus_take_what_does_not_fit_into_one(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(WELL_KNOWN["qwen2.5-72b"]))
    gib = 1 << 30
    monkeypatch.setattr(orchestrator, "survey_cuda", lambda: gpus_with(90 * gib, 25 * gib, gib))
    both = IntelligenceOrchestrator.multi_gpu(tmp_path, gpu_ids=[0, 1])
    assert (both.quantization, both.gpu_ids) == ("int4", (0, 1))
    assert both.estimate.total_bytes < 23 * gib
    for named in ([0, 1, 3], [7]):
        with pytest.raises(DeviceError, match="there are no GPUs"):
            IntelligenceOrchestrator.multi_gpu(tmp_path, gpu_ids=named)
    with pytest.raises(UsageError, match="3 ranks"):
        IntelligenceOrchestrator.multi_gpu(tmp_path)


def test_one_gpu_that_is_named_is_the_one(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(WELL_KNOWN["qwen2.5-72b"]))
    monkeypatch.setattr(orchestrator, "survey_cuda", lambda: gpus_with(1 << 30, 90 << 30))
    given = {}
    monkeypatch.setattr(orchestrator, "LLM", lambda *_, **options: given.update(options))
    IntelligenceOrchestrator.multi_gpu(tmp_path, gpu_ids=[1]).load()
    assert (given["device"], given["tensor_parallel"], given["gpus"]) == ("cuda:1", 1, "")


def test_without_a_gpu_there_is_the_host_s_memory(monkeypatch):
    survey = CudaSurvey(driver_version="", gpus=(), problem=None)
    monkeypatch.setattr(orchestrator, "survey_cuda", lambda: survey)
    info = IntelligenceOrchestrator.get_gpu_info()
    assert info["count"] == 0
    assert info["total_memory"] == 0
    assert info["host_free_memory"] > 0


def test_an_unknown_mode_is_refused(random_zse):
    with pytest.raises(UsageError, match="fastest"):
        load_model(random_zse, "fastest")


def gpu_state(ordinal, free_bytes, problem=None):
    info = GpuInfo(
        name="Little GPU",
        target="sm_90",
        warp_threads=32,
        total_bytes=1 << 31,
        free_bytes=free_bytes,
        multiprocessors=1,
        driver_version=12040,
        shared_memory_optin_bytes=0,
        l2_bytes=0,
        bandwidth_bytes_per_second=0.0,
        ordinal=ordinal,
        uuid="GPU-0",
    )
    return GpuState(info=info, problem=problem)


@pytest.fixture
def two_gpus(monkeypatch):
    """One GPU with little room, and one that is in use by others."""
    busy = DeviceError("the GPU is in use", hint="Wait.")
    survey = CudaSurvey(
        driver_version="12.4", gpus=(gpu_state(0, 1000), gpu_state(1, 0, busy)), problem=None
    )
    monkeypatch.setattr(orchestrator, "survey_cuda", lambda: survey)


@pytest.mark.usefixtures("two_gpus")
def test_the_memory_of_a_gpu_decides_what_runs_on_it(random_checkpoint):
    with pytest.raises(DeviceError, match=r"but 0\.00 GB are available"):
        IntelligenceOrchestrator.auto(random_checkpoint, device="cuda")
    with pytest.raises(DeviceError, match="the GPU is in use"):
        IntelligenceOrchestrator.auto(random_checkpoint, device="cuda:1")
    with pytest.raises(DeviceError, match="'cuda:2' is none of the 2 GPUs"):
        IntelligenceOrchestrator.auto(random_checkpoint, device="cuda:2")
    assert IntelligenceOrchestrator.auto(random_checkpoint, device="cpu").quantization == "bf16"


@pytest.mark.usefixtures("two_gpus")
def test_gpu_info_counts_the_gpus_that_can_be_used():
    info = IntelligenceOrchestrator.get_gpu_info()
    assert (info["count"], info["total_memory"], info["free_memory"]) == (1, 1 << 31, 1000)
    assert [gpu["name"] for gpu in info["gpus"]] == ["Little GPU"]


@pytest.fixture
def gpu_of_24_gb(monkeypatch):
    survey = CudaSurvey(driver_version="12.4", gpus=(gpu_state(0, 24 * 10**9),), problem=None)
    monkeypatch.setattr(orchestrator, "survey_cuda", lambda: survey)


@pytest.mark.usefixtures("gpu_of_24_gb")
def test_one_model_needs_the_same_of_a_gpu_whoever_asks(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(WELL_KNOWN["qwen2.5-14b"]))
    made = IntelligenceOrchestrator.auto(tmp_path, device="cuda", max_context=32768)
    assert (made.quantization, made.estimate.context_tokens) == ("int4", 32768)
    assert made.estimate.kv_bytes == 32768 * 2 * 48 * 8 * 128 * 2
    asked_by_deploy = need_of(
        read_facts(tmp_path, load_settings()), on_gpu=True, context_tokens=32768
    )
    assert made.estimate.total_bytes == asked_by_deploy.total_bytes < 17.5 * 10**9
    short = IntelligenceOrchestrator.min_memory(tmp_path, device="cuda")
    known = well_known_estimates(on_gpu=True)
    assert short.estimate.total_bytes == known["qwen2.5-14b", "int4"].total_bytes
    needs = short.estimate_requirements()["by_quantization"]["int4"]
    assert needs["total_bytes"] == short.estimate.total_bytes
