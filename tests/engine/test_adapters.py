"""Adapters in the engine: many in one batch, added and removed while it answers."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from random_adapters import write_adapter

from zse.backends.gpu.adapter_image import largest_image_bytes
from zse.engine.adapters import AdapterNameTakenError, parse_named
from zse.engine.llm import LLM
from zse.engine.loading import with_room_for_adapters
from zse.engine.request import SamplingParams
from zse.errors import LoRAError, ModelNotFoundError, UsageError
from zse.format import ZSEReader
from zse.models.runner import spec_of
from zse.models.uniform import TensorNames, UniformDecoder
from zse.options import load_options
from zse.quantize.locate import locate_model
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMPT = [3 + (7 * place) % 300 for place in range(40)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
OTHER = UniformDecoder(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
).spec(TensorNames())
NAMES = [None, "one", "two", "three"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model's file, and folders of three adapters of different ranks and modules."""
    model, root = locate_model("tiny", load_settings()), tmp_path_factory.mktemp("adapters")
    with ZSEReader(model) as reader:
        spec = spec_of(reader)
    few = ["q_proj", "down_proj"]
    return SimpleNamespace(
        model=model,
        spec=spec,
        one=write_adapter(root / "one", spec, seed=1),
        two=write_adapter(root / "two", spec, seed=2, rank=9, modules=few),
        three=write_adapter(root / "three", spec, seed=3, rank=1, use_rslora=True),
    )


@pytest.fixture(params=["cpu", "torch"])
def llm(folders: SimpleNamespace, request: pytest.FixtureRequest) -> Iterator[LLM]:
    loras = {name: getattr(folders, name) for name in NAMES if name}
    with LLM(folders.model, device=request.param, num_blocks=64, block_size=8, loras=loras) as made:
        yield made


def answers(llm: LLM, prompts: list[tuple[list[int], str | None]]) -> list[list[int]]:
    """Return the greedy answers to prompts, each with its adapter, computed together."""
    streams = [llm._open(prompt, GREEDY, None, lora) for prompt, lora in prompts]
    for stream in streams:
        while not stream.text.is_finished:
            llm._streams.step(stream)
    found = [[t for delta in stream.deltas for t in delta.token_ids] for stream in streams]
    for stream in streams:
        llm._streams.forget(stream)
    return found


def test_a_mixed_batch_answers_as_each_adapter_does_alone(llm: LLM) -> None:
    alone = [answers(llm, [(PROMPT, name)])[0] for name in NAMES]
    assert len({tuple(one) for one in alone}) == len(NAMES)
    llm._model.core.cache.flush()
    assert answers(llm, [(PROMPT, name) for name in NAMES * 2]) == alone * 2


def test_a_prefix_is_no_other_adapters(llm: LLM) -> None:
    before = {name: answers(llm, [(PROMPT, name)])[0] for name in NAMES}
    hits = llm.stats().prefix_hit_tokens
    assert hits == 0
    assert {name: answers(llm, [(PROMPT, name)])[0] for name in NAMES} == before
    assert llm.stats().prefix_hit_tokens >= 4 * 32


def test_another_adapter_of_the_same_name_finds_none_of_the_firsts_prefixes(
    llm: LLM, folders: SimpleNamespace
) -> None:
    first = answers(llm, [(PROMPT, "one")])[0]
    llm.adapters.remove("one")
    llm.adapters.load("one", folders.two)
    second = answers(llm, [(PROMPT, "one")])[0]
    assert llm.stats().prefix_hit_tokens == 0
    assert second == answers(llm, [(PROMPT, "two")])[0] != first


def test_a_salt_that_looks_like_an_adapters_number_is_none(llm: LLM) -> None:
    number = llm.adapters.get("one").number
    answers(llm, [(PROMPT, "one")])
    core = llm._model.core
    for salt in (f"{number}", f"({number}, '')", f"{number}\0"):
        table = core.cache.open_table(PROMPT, namespace=salt)
        assert table is not None
        assert table.num_reused_tokens == 0
        core.cache.close_table(table)


def test_what_runs_ends_with_the_adapter_that_was_removed_meanwhile(llm: LLM) -> None:
    expected = answers(llm, [(PROMPT, "one")])[0]
    llm._model.core.cache.flush()
    stream = llm._open(PROMPT, GREEDY, None, "one")
    llm._streams.step(stream)
    llm._streams.step(stream)
    handle = weakref.ref(llm.adapters.remove("one").handle)
    with pytest.raises(ModelNotFoundError, match="no adapter 'one'"):
        llm.generate([PROMPT], GREEDY, lora="one")
    while not stream.text.is_finished:
        llm._streams.step(stream)
    assert [t for delta in stream.deltas for t in delta.token_ids] == expected
    assert handle() is not None
    llm._streams.forget(stream)
    del stream
    llm.generate([PROMPT], GREEDY)  # the step before it is let go of
    gc.collect()
    assert handle() is None


def test_a_name_is_one_adapters(llm: LLM, folders: SimpleNamespace) -> None:
    with pytest.raises(AdapterNameTakenError, match="'one' has already been loaded"):
        llm.adapters.load("one", folders.two)
    assert [one.name for one in llm.adapters] == ["one", "two", "three"]


def test_an_adapter_for_another_model_leaves_nothing_behind(llm: LLM, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "other", OTHER)
    with pytest.raises(LoRAError, match=r"lora_A of model.layers.0.* has shape \[4, "):
        llm.adapters.load("other", folder)
    assert "other" not in [one.name for one in llm.adapters]
    with pytest.raises(ModelNotFoundError):
        llm.adapters.get("other")


def test_there_are_no_more_adapters_than_was_allowed(folders: SimpleNamespace) -> None:
    loras = {"one": folders.one, "two": folders.two}
    with pytest.raises(UsageError, match="as many as --max-loras allows"):
        LLM(folders.model, device="cpu", num_blocks=8, loras=loras, max_loras=1)


def test_a_rank_is_within_what_was_allowed(folders: SimpleNamespace) -> None:
    with pytest.raises(LoRAError, match="r is 9, expected 1 to 8"):
        LLM(folders.model, device="cpu", num_blocks=8, loras={"a": folders.two}, max_lora_rank=8)


def test_a_gpu_has_room_for_as_many_of_the_largest_as_are_named(folders: SimpleNamespace) -> None:
    largest = largest_image_bytes(folders.spec, 16)
    options = load_options(max_lora_rank=16, max_loras=3)
    assert with_room_for_adapters(options, folders.spec, 2).lora.gpu_bytes == 2 * largest
    assert with_room_for_adapters(options, folders.spec, 9).lora.gpu_bytes == 3 * largest
    asked = load_options(lora_gib=0.5)
    assert with_room_for_adapters(asked, folders.spec, 9) is asked


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("some",), "names no adapter"),
        (("some=",), "names no adapter"),
        (("a=b", "a=c"), "names 'a' twice"),
    ],
)
def test_what_names_no_adapter_is_told(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_named(texts)
