"""Known models: supported, and exactly as large as those who published them say."""

import re
from datetime import date

import pytest

from zse.errors import NotFoundError
from zse.models.families import all_families
from zse.models.memory import estimate_memory
from zse.models.registry import find_known, known_models, search_models, select_models

PUBLISHED_PARAMETERS = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-4B-Instruct-2507": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "Qwen/Qwen3-Embedding-0.6B": 595_776_512,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46_702_792_704,
    "google/gemma-2-2b-it": 2_614_341_888,
    "google/gemma-2-9b-it": 9_241_705_984,
    "google/gemma-2-27b-it": 27_227_128_320,
    "google/gemma-3-270m-it": 268_098_176,
    "google/gemma-3-1b-it": 999_885_952,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft/phi-4": 14_659_507_200,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "allenai/OLMo-2-0425-1B-Instruct": 1_484_916_736,
    "allenai/OLMo-2-1124-7B-Instruct": 7_298_617_344,
    "allenai/OLMo-2-1124-13B-Instruct": 13_716_198_400,
    "deepseek-ai/DeepSeek-V2-Lite-Chat": 15_706_484_224,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "bigcode/starcoder2-3b": 3_030_371_328,
    "bigcode/starcoder2-7b": 7_173_923_840,
}
"""As their pages on the hub count them, without a head that is the embedding again."""


@pytest.mark.parametrize(("repository", "published"), PUBLISHED_PARAMETERS.items())
def test_a_known_model_has_as_many_parameters_as_was_published(repository, published):
    assert find_known(repository).num_parameters == published


def test_a_known_model_is_as_large_as_its_name_says():
    named = 0
    for model in known_models().values():
        size = re.search(r"-(\d+(?:\.\d+)?)([bm])(?=-|$)", model.repository, re.IGNORECASE)
        if size is None:
            continue
        named += 1
        said = float(size[1]) * {"b": 1e9, "m": 1e6}[size[2].lower()]
        assert 0.8 * said <= model.num_parameters <= 1.5 * said, model.repository
    assert named > 45


def test_there_are_forty_models_and_each_says_where_and_when_it_was_read():
    models = known_models().values()
    assert len(models) >= 40
    for model in models:
        assert model.source
        assert date(2026, 1, 1) <= model.recorded
        assert model.max_context >= 512


def test_every_architecture_of_the_registry_is_a_supported_one():
    supported = {name for family in all_families().values() for name in family.ARCHITECTURES}
    assert {model.architecture for model in known_models().values()} <= supported


def test_estimates_grow_with_the_scheme():
    facts = find_known("Qwen/Qwen3-8B").facts
    by_scheme = [
        estimate_memory(facts, scheme, on_gpu=True).total_bytes
        for scheme in ("int4", "int8", "bf16")
    ]
    assert by_scheme == sorted(by_scheme)
    assert by_scheme[0] < 7e9 < 16e9 < by_scheme[2]


def test_a_search_wants_every_word_whatever_its_case():
    assert [model.repository for model in search_models("8B qwen3-")] == ["Qwen/Qwen3-8B"]
    assert {model.category for model in search_models("code")} == {"code"}
    assert search_models("no-such-model") == []
    assert len(search_models("")) == len(known_models())


def test_models_are_chosen_by_category_memory_and_recommendation():
    small = select_models(category="code", largest_bytes=6e9)
    assert 0 < len(small) < len(select_models(category="code"))
    assert all(estimate_memory(one.facts, "int4", on_gpu=True).total_bytes <= 6e9 for one in small)
    recommended = select_models(is_recommended=True)
    assert {model.category for model in recommended} == {"chat", "code", "reasoning", "embedding"}
    assert len(recommended) < len(known_models())


@pytest.mark.parametrize("asked", ["Qwen/Qwen3-8b", "qwen3-8B", "qwen/qwn3-8b"])
def test_of_an_unknown_model_the_nearest_names_are_said(asked):
    with pytest.raises(NotFoundError) as caught:
        find_known(asked)
    assert caught.value.hint.startswith("Did you mean Qwen/Qwen3-8B")


def test_what_is_like_nothing_has_no_nearest_name():
    with pytest.raises(NotFoundError) as caught:
        find_known("x" * 100_000)
    assert "Did you mean" not in caught.value.hint
    assert len(str(caught.value)) < 1000
