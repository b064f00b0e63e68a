"""On real runners an answer with drafts is to the bit the one without."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from engine_answers import (
    form_compiler,
    request_in_a_form,
    requests_with_one_beginning,
    told_answers,
)
from known_answers import KnownAnswers
from model_pairs import make_pair

from zse.backends.cpu import sequences
from zse.engine.core import EngineCore
from zse.engine.drafting.speculator import Speculator
from zse.engine.loading import make_core
from zse.engine.request import Request, SamplingParams
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from engine_answers import Told

    from zse.engine.sequence import Sequence
    from zse.engine.stats import EngineStats

__all__ = ["make_pair"]

PROMPTS = [[*range(60, 75)] * 4, [70] * 20, [*b"return x; if (y) { return y; } if (x) { return"]]
DEVICES: list[dict[str, Any]] = [
    {"device": "torch"},
    {"device": "cpu"},  # activations rounded to 8 bits, a scale each: no row sees another
    {"device": "cpu", "exact_activations": True, "kv_dtype": "int8"},
]


def open_core(
    path: Path, device: dict[str, Any], answers: Told | None = None, **sizes: Any
) -> EngineCore:
    """A core without drafts, or with those that others were answered; every fifth one is wrong.

    Every step takes as long for it, so that drafts always pay.
    """
    sizes = {"num_blocks": 64, "block_size": 8, "threads": 1, **sizes}
    options = load_options(**device, **sizes)
    runner = load_runner(path, options)
    if answers is None:
        return EngineCore(runner, options)

    def answer_of(sequence: Sequence) -> list[int]:
        return [told[0] for told in answers[sequence.request.request_id, sequence.index]]

    clock = itertools.count()
    speculator = Speculator(KnownAnswers(answer_of), clock.__next__)
    return EngineCore(runner, options, begin_speculation=lambda: speculator)


def stats_of_equal(
    path: Path, device: dict[str, Any], requests: Callable[[], list[Request]], **sizes: Any
) -> EngineStats:
    """Answer requests without drafts and with them, and hold them against each other."""
    alone = open_core(path, device, **sizes)
    without = told_answers(alone, requests())
    alone.close()
    core = open_core(path, device, without, **sizes)
    assert told_answers(core, requests()) == without
    stats = core.stats()
    core.close()
    assert stats.speculation.draft_tokens > stats.speculation.accepted_tokens > 0
    return stats


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalties": {"repetition_penalty": 1.02, "frequency_penalty": 0.01, "logit_bias": {65: 2.0}},
    "logprobs": {"logprobs": 3},
    "sampled": {"temperature": 0.4, "top_p": 0.9, "top_k": 20, "seed": 5, "n": 2},
    "ends": {"min_tokens": 12, "stop_token_ids": [97, 98, 99, 100, 101, 102], "ignore_eos": False},
}

WIDE_HEADS: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "num_hidden_layers": 2,
    "eos_token_id": None,
}


def requests_in(way: str) -> list[Request]:
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, **WAYS[way]}
    return [
        Request(request_id=str(i), prompt_token_ids=prompt, params=SamplingParams(**params))
        for i, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: "-".join(map(str, device.values())))
@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_no_token_and_no_log_probability(
    random_zse: Path, device: dict[str, Any], way: str
) -> None:
    stats_of_equal(random_zse, device, partial(requests_in, way))


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_nothing_on_a_gpu_where_every_token_is_computed_alone(
    make_pair: Callable[..., Any], way: str
) -> None:
    pair = make_pair("qwen2", "int4", **WIDE_HEADS)
    kernels = load_settings().serve.load.device.kernels
    device = {"device": "cuda", "deterministic": True, "kernels": kernels}
    stats_of_equal(pair.path, device, partial(requests_in, way), block_size=32)


def test_preemptions_and_short_steps_change_nothing_either(random_zse: Path) -> None:
    def requests() -> list[Request]:
        params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
        return [
            Request(request_id=str(i), prompt_token_ids=prompt, params=params)
            for i, prompt in enumerate(PROMPTS)
        ]

    sizes = {"num_blocks": 22, "max_batch_tokens": 16, "prefix_cache": False}
    assert stats_of_equal(random_zse, {"device": "cpu"}, requests, **sizes).preemptions > 0


def test_an_answer_in_a_form_is_the_same_with_drafts(random_zse: Path) -> None:
    compiler = form_compiler(random_zse)

    def requests() -> list[Request]:
        return [request_in_a_form(compiler, 50)]

    stats_of_equal(random_zse, {"device": "cpu"}, requests)


def test_what_is_sampled_with_drafts_has_the_distribution_of_the_model(random_zse: Path) -> None:
    """Pearson's chi-square of third tokens against as many draws without drafts."""
    num_draws = 400

    def request_of(seed: int) -> Request:
        params = SamplingParams(temperature=2.0, top_k=6, max_tokens=5, seed=seed)
        return Request(request_id="a", prompt_token_ids=PROMPTS[1], params=params)

    def draws(core: EngineCore, first_seed: int) -> Counter[int]:
        seeds = range(first_seed, first_seed + num_draws)
        told = [told_answers(core, [request_of(seed)])["a", 0] for seed in seeds]
        return Counter(one[min(2, len(one) - 1)][0] for one in told)

    without = open_core(random_zse, {"device": "cpu"})
    wanted = draws(without, 10_000)
    with_drafts = open_core(random_zse, {"device": "cpu"}, told_answers(without, [request_of(3)]))
    found = draws(with_drafts, 0)
    counts = with_drafts.stats().speculation
    assert counts.draft_tokens > counts.accepted_tokens > num_draws / 20
    likely = [token for token in wanted if wanted[token] + found[token] >= 20]
    chi_square = sum((found[t] - wanted[t]) ** 2 / (found[t] + wanted[t]) for t in likely)
    freedom = len(likely)
    assert freedom >= 3
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5  # four standard deviations
    with_drafts.close()
    without.close()


@pytest.mark.parametrize("family", ["gemma3", "mistral"])
def test_windows_hold_what_is_seen_behind_drafts_that_were_wrong(
    family: str, make_pair: Callable[..., Any]
) -> None:
    own = {"sliding_window": 9} if family == "mistral" else {}
    pair = make_pair(family, "fp32", eos_token_id=None, **own)

    def requests() -> list[Request]:
        params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
        prompts = [[5, 6, 7, 8] * 5, [9, 10, 11] * 8]
        return [
            Request(request_id=str(i), prompt_token_ids=prompt, params=params)
            for i, prompt in enumerate(prompts)
        ]

    sizes = {"block_size": 4, "max_sequences": 3, "max_batch_tokens": 24}
    stats_of_equal(pair.path, {"device": "cpu"}, requests, **sizes)


@pytest.mark.parametrize("device", DEVICES[:2], ids=lambda device: device["device"])
@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_states_are_those_behind_the_drafts_that_stood(
    device: dict[str, Any], way: str, make_pair: Callable[..., Any]
) -> None:
    pair = make_pair("qwen3_next", "fp32", eos_token_id=None)

    def requests() -> list[Request]:
        params = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "logprobs": 2}
        return requests_with_one_beginning(**params | WAYS[way])

    sizes = {"block_size": 4, "max_sequences": 3, "max_batch_tokens": 24}
    stats_of_equal(pair.path, device, requests, **sizes)


def test_states_of_drafts_outlive_no_preemption(make_pair: Callable[..., Any]) -> None:
    pair = make_pair("qwen3_next", "fp32", eos_token_id=None)

    def requests() -> list[Request]:
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        prompts = ([5, 6, 7, 8] * 5, [9, 10] * 8, [11, 12, 13] * 6)
        return [
            Request(request_id=str(index), prompt_token_ids=prompt, params=params)
            for index, prompt in enumerate(prompts)
        ]

    sizes = {"block_size": 4, "num_blocks": 30, "max_sequences": 3, "max_batch_tokens": 24}
    assert stats_of_equal(pair.path, {"device": "cpu"}, requests, **sizes).preemptions > 0


def test_a_device_that_keeps_no_states_of_drafts_checks_none_and_says_so(
    make_pair: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "MOST_DRAFT_STATES", 0)
    pair = make_pair("qwen3_next", "fp32", eos_token_id=None)
    options = load_options(device="cpu", num_blocks=32, threads=1, speculate="suffix")
    core = make_core(load_runner(pair.path, options), options)
    assert "the states of this model cannot go back" in caplog.text
    params = SamplingParams(max_tokens=20)
    told_answers(core, [Request(request_id="a", prompt_token_ids=[5, 6, 7] * 5, params=params)])
    assert core.stats().speculation.draft_tokens == 0
    core.close()
