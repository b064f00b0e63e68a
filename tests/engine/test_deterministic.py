"""With --deterministic an answer is the same to the bit, whatever shares its steps.

The same tests run on the reference, on the CPU and, where there is one, on a GPU.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from model_pairs import make_pair

from zse.engine.core import EngineCore
from zse.engine.loading import make_core
from zse.engine.request import Request, SamplingParams
from zse.errors import InvalidParameterError, UnsupportedModelError
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["make_pair"]

SHAPE: dict[str, Any] = {
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
DEVICES = [
    ("torch", "qwen2"),
    ("cpu", "qwen2"),
    pytest.param(("cuda", "qwen2"), marks=pytest.mark.gpu),
    pytest.param(("cuda", "gemma3"), marks=pytest.mark.gpu),
]
"""With a family; one of them has windows."""
BLOCK_SIZES = {"torch": 8, "cpu": 8, "cuda": 32}
SHARED_TOKENS = {"torch": 35, "cpu": 135, "cuda": 148}  # a CPU's rows split what is longer than 128
FEW_BLOCKS = {"torch": 12, "cpu": 37, "cuda": 11}
"""Hold two sequences of those, but not their ends."""
NUM_REQUESTS = {"torch": 6, "cpu": 32, "cuda": 500}
NUM_MIXED = 120
"""Of these, where half of them ask for bits of their own beside all of them that do not."""
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.2, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.0, "repetition_penalty": 1.1},
]
SITUATIONS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "small steps": {"max_batch_tokens": 23},
    "no reuse": {"prefix_cache": False},
    "preemptions": {"is_short": True, "prefix_cache": False},
    "drafts": {"speculate": "suffix"},
}
Told = dict[str, list[tuple[int | None, float | None]]]


@pytest.fixture(params=DEVICES, ids="-".join)
def chosen(request: pytest.FixtureRequest) -> tuple[str, str]:
    device, family = request.param
    return device, family


@pytest.fixture
def device(chosen: tuple[str, str]) -> str:
    return chosen[0]


@pytest.fixture
def path(make_pair: Callable[..., Any], chosen: tuple[str, str]) -> Path:
    device, family = chosen
    own = {"sliding_window": 40} if family == "gemma3" else {}
    found: Path = make_pair(family, "int8" if device == "torch" else "int4", **SHAPE, **own).path
    return found


def requests_of(device: str) -> list[Request]:
    """Prompts of which many begin alike and repeat themselves, in every way of choosing."""
    numbers, shared = random.Random(3), SHARED_TOKENS[device]
    found = []
    for index in range(NUM_REQUESTS[device]):
        prompt = [*range(index % 2, index % 2 + shared), *numbers.choices(range(300), k=index % 9)]
        prompt += [7, 8, 9, 7, 8, 9, 7] if index % 2 else []
        ways = WAYS[index % len(WAYS)]
        params = SamplingParams(max_tokens=8 + index % 5, seed=index, logprobs=1, **ways)
        found.append(Request(request_id=str(index), prompt_token_ids=prompt, params=params))
    return found


def open_core(path: Path, device: str, *, is_short: bool = False, **options: Any) -> EngineCore:
    """A core on a device, with blocks for all that runs or, for a short one, for little of it."""
    block_size = BLOCK_SIZES[device]
    chosen = load_options(
        device=device,
        block_size=block_size,
        num_blocks=FEW_BLOCKS[device] if is_short else 4096 // block_size,
        threads=1,
        kernels=load_settings().serve.load.device.kernels,
        **{"deterministic": True, "max_sequences": 24, "max_batch_tokens": 256, **options},
    )
    runner = load_runner(path, chosen, cache_dir=load_settings().cache_dir)
    core = make_core(runner, chosen)
    assert isinstance(core, EngineCore)
    return core


def answers_of(core: EngineCore, requests: list[Request], arrivals: int = 3) -> Told:
    """Answer requests of which a few arrive before each step."""
    waiting, answers = list(requests), Told()
    while core.has_work or waiting:
        for request in waiting[:arrivals]:
            core.add_request(request)
        del waiting[:arrivals]
        for event in core.step():
            answers.setdefault(event.request_id, []).append((event.token_id, event.logprob))
    return answers


@pytest.fixture
def alone(path: Path, device: str) -> Told:
    """The answer to each request that nobody shares a step with, nothing reused."""
    core = open_core(path, device, prefix_cache=False)
    answers = Told()
    for request in requests_of(device):
        answers |= answers_of(core, [request])
    core.close()
    return answers


def test_an_answer_is_the_same_to_the_bit_in_any_company(
    path: Path, device: str, alone: Told
) -> None:
    for name, options in SITUATIONS.items():
        core = open_core(path, device, **options)
        found = answers_of(core, requests_of(device))
        wrong = [key for key, told in alone.items() if found[key] != told]
        assert not wrong, f"{name}: {len(wrong)} of {len(alone)}"
        stats = core.stats()
        assert bool(stats.prefix_hit_tokens) == options.get("prefix_cache", True)
        assert bool(stats.preemptions) == (name == "preemptions")
        core.close()


def test_one_request_is_computed_alone_where_others_are_not(
    path: Path, device: str, alone: Told
) -> None:
    requests = requests_of(device)[:NUM_MIXED]
    own = [replace(each, params=replace(each.params, deterministic=True)) for each in requests[::2]]
    others = [replace(each, request_id=f"other {each.request_id}") for each in requests]
    mixed = [each for pair in zip(others, [*own, *own], strict=False) for each in pair]
    mixed = list({each.request_id: each for each in mixed}.values())
    for options in ({}, {"is_short": True}, {"max_batch_tokens": 23}):
        core = open_core(path, device, deterministic=False, **options)
        found = answers_of(core, mixed)
        assert not [each.request_id for each in own if
                    found[each.request_id] != alone[each.request_id]]  # fmt: skip
        assert options or core.stats().prefix_hit_tokens
        core.close()


def test_prefixes_computed_alone_are_shared_with_such_alone() -> None:
    params = SamplingParams(temperature=0.0)
    plain = Request(request_id="a", prompt_token_ids=[1], params=params, cache_salt="s")
    alone = replace(plain, params=replace(params, deterministic=True))
    assert plain.namespace == "s"
    assert alone.namespace == replace(alone, request_id="b").namespace != plain.namespace
    assert alone.namespace != replace(alone, cache_salt="").namespace


def test_what_is_drawn_alone_takes_a_seed() -> None:
    with pytest.raises(InvalidParameterError, match="seed is None, expected a number") as error:
        SamplingParams(deterministic=True)
    assert error.value.param == "seed"
    SamplingParams(deterministic=True, seed=3)
    SamplingParams(deterministic=True, temperature=0.0)


def test_a_server_that_computes_all_so_takes_the_field_as_read(
    make_pair: Callable[..., Any],
) -> None:
    path = make_pair("qwen2", "int4", **SHAPE).path
    core = open_core(path, "cpu")
    params = SamplingParams(temperature=0.0, max_tokens=2)
    prompt = list(range(20))
    first = Request(request_id="a", prompt_token_ids=prompt, params=params)
    answers_of(core, [first])
    again = replace(first, request_id="b", params=replace(params, deterministic=True))
    answers_of(core, [again])
    assert core.stats().prefix_hit_tokens == 16
    core.close()


def test_a_model_whose_states_go_through_prompts_in_pieces_is_refused(
    make_pair: Callable[..., Any],
) -> None:
    pair = make_pair("qwen3_next", "fp32", eos_token_id=None)
    with pytest.raises(UnsupportedModelError, match="linear attention, which --deterministic does"):
        load_runner(pair.path, load_options(device="cpu", num_blocks=8, deterministic=True))
