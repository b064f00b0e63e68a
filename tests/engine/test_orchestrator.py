from __future__ import annotations

import pytest

from zse.engine.orchestrator import IntelligenceOrchestrator, load_model
from zse.errors import DeviceError, EngineError, UsageError


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
    orchestrator = make(random_checkpoint)
    assert orchestrator.quantization == quantization
    assert not orchestrator.is_loaded


def test_a_budget_chooses_the_best_scheme_that_fits(random_checkpoint):
    needs = IntelligenceOrchestrator.auto(random_checkpoint).estimate_requirements()
    totals = {name: e["total_bytes"] for name, e in needs["by_quantization"].items()}
    assert needs["chosen"] == "bf16"
    assert totals["bf16"] > totals["int8"] > totals["int4"]
    for name, total in totals.items():
        chosen = IntelligenceOrchestrator.for_vram((total + 1) / 1e9, random_checkpoint)
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


def test_a_checkpoint_is_converted_to_the_chosen_scheme(random_checkpoint):
    orchestrator = load_model(random_checkpoint, "min_memory", device="cpu")
    assert orchestrator.is_loaded
    assert orchestrator.generate("x", max_tokens=1, stream=False, ignore_eos=True) is not None
    orchestrator.close()


def test_generating_before_loading_says_what_to_do(random_zse):
    with pytest.raises(EngineError, match="not loaded") as caught:
        IntelligenceOrchestrator.auto(random_zse).generate("x")
    assert "load()" in caught.value.hint


def test_several_gpus_are_refused_with_the_way_to_go_on(random_zse):
    with pytest.raises(DeviceError, match="one device") as caught:
        IntelligenceOrchestrator.multi_gpu(random_zse, gpu_ids=[0, 1])
    assert "auto" in caught.value.hint


def test_gpu_info_counts_what_this_build_can_use():
    info = IntelligenceOrchestrator.get_gpu_info()
    assert info["count"] == 0
    assert info["total_memory"] == 0
    assert info["host_free_memory"] > 0


def test_an_unknown_mode_is_refused(random_zse):
    with pytest.raises(UsageError, match="fastest"):
        load_model(random_zse, "fastest")
