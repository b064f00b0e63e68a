"""Known models: supported, and as large as their names say."""

import re

import pytest

from zse.models.families import all_families
from zse.models.memory import estimate_memory
from zse.models.registry import known_models, search_models


@pytest.mark.parametrize("repository", known_models())
def test_a_known_model_is_as_large_as_its_name_says(repository):
    billions = float(re.search(r"-(\d+(?:\.\d+)?)b", repository, re.IGNORECASE)[1])
    found = known_models()[repository].num_parameters / 1e9
    assert 0.8 * billions <= found <= 1.2 * billions


def test_every_architecture_of_the_registry_is_a_supported_one():
    supported = {name for family in all_families().values() for name in family.ARCHITECTURES}
    assert {model.architecture for model in known_models().values()} <= supported


def test_estimates_grow_with_the_scheme():
    facts = known_models()["Qwen/Qwen3-8B"].facts
    by_scheme = [
        estimate_memory(facts, scheme, on_gpu=True).total_bytes
        for scheme in ("int4", "int8", "bf16")
    ]
    assert by_scheme == sorted(by_scheme)
    assert by_scheme[0] < 7e9 < 16e9 < by_scheme[2]


def test_a_search_wants_every_word_whatever_its_case():
    assert [model.repository for model in search_models("4B qwen3-")] == [
        "Qwen/Qwen3-4B",
        "Qwen/Qwen3-14B",
    ]
    assert {model.category for model in search_models("code")} == {"code"}
    assert search_models("no-such-model") == []
    assert len(search_models("")) == len(known_models())
