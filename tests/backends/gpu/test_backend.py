"""The GPU backend on a device made of Triton's interpreter: the same answers as on the CPU."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from given_masks import GivenMasks
from interpreted_runner import open_runner
from logits import as_tensor
from penalized_steps import decode_with_penalties
from random_files import BIASES, LAYER_NORMS, SCALES, write_random_file

from zse.backends.types import PENDING_TOKEN, SampledToken, SequenceChunk, StepBatch, kind_of
from zse.kernels.linear.launch_8bit import multiply_kept
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.models.runner import ModelRunner

# Small: a program of the interpreter takes tens of milliseconds, and a matrix has many.
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 72,
    "max_position_embeddings": 64,
    "num_hidden_layers": 1,
}
PROMPT = [5, 17, 70, 33]


@pytest.fixture(params=["int4", "int8"])
def path(request: pytest.FixtureRequest, make_pair: Callable[..., object]) -> Path:
    return make_pair("qwen2", request.param, **SHAPE).path


@pytest.fixture
def runner(path: Path) -> Iterator[ModelRunner]:
    runner = open_runner(path)
    yield runner
    runner.close()


def chunk(tokens: list[int], start: int, *, slot: int = 0, blocks: tuple[int, ...] = (2, 5)):
    return SequenceChunk(slot, tokens, start, blocks, kind_of(len(tokens)))


def greedy(step: int = 0) -> SamplingRow:
    return SamplingRow(temperature=0.0, step=step)


def test_logits_of_a_prompt_are_those_of_the_cpu(path, runner):
    found = as_tensor(runner.logits(PROMPT))
    cpu = load_runner(path, load_options(device="torch", num_blocks=8))
    expected = as_tensor(cpu.logits(PROMPT))
    cpu.close()
    error = (found - expected).norm() / expected.norm()
    assert float(error) < 2e-2


def test_penalties_count_the_token_that_only_the_device_knows(runner, path):
    found = decode_with_penalties(runner, PROMPT, (2, 5), num_tokens=4, ahead=True)
    cpu = load_runner(path, load_options(device="torch", num_blocks=8))
    expected = decode_with_penalties(cpu, PROMPT, (2, 5), num_tokens=4, ahead=False)
    cpu.close()
    assert found == expected


def test_a_prompt_that_was_prepared_loads_no_code_when_it_comes(runner):
    backend = runner._backend
    loaded = backend._launcher._loaded
    held = [len(loaded) for _ in backend.prepare_prompt(runner._forward, len(PROMPT))]
    assert all(after - before <= 1 for before, after in itertools.pairwise(held))  # one by one
    assert held[-1] > held[0]
    before = set(loaded)
    random = SamplingRow(temperature=1.0, step=0)
    runner.execute(StepBatch(chunks=[chunk(PROMPT, 0)], sampling=[[random]]))
    assert loaded == before


def test_a_decode_step_continues_from_the_device(runner, path):
    first = runner.submit(StepBatch(chunks=[chunk(PROMPT, 0)], sampling=[[greedy()]]))
    second = runner.submit(
        StepBatch(chunks=[chunk([PENDING_TOKEN], len(PROMPT))], sampling=[[greedy(1)]])
    )
    tokens = [first.wait()[0][0].token_id, second.wait()[0][0].token_id]
    cpu = load_runner(path, load_options(device="torch", num_blocks=8))
    logits = as_tensor(cpu.logits([*PROMPT, tokens[0]]))
    cpu.close()
    assert tokens == [int(logits[-2].argmax()), int(logits[-1].argmax())]


def test_drafts_are_checked_in_one_step(make_pair):
    path = make_pair("qwen2", "int8", **SHAPE).path
    cpu = load_runner(path, load_options(device="torch", num_blocks=8))
    tokens = list(PROMPT)
    for _ in range(3):
        tokens.append(int(as_tensor(cpu.logits(tokens))[-1].argmax()))
    cpu.close()
    first, second, third = tokens[len(PROMPT) :]
    runner = open_runner(path)
    assert runner.execute(StepBatch(chunks=[chunk(PROMPT, 0)], sampling=[[greedy()]]))[0] == [
        SampledToken(first)
    ]
    for drafts, accepted in (([second, 9], [second, third]), ([9, third], [second])):
        verify = chunk([first, *drafts], len(PROMPT))._replace(kind="verify")
        rows = [greedy(step) for step in (1, 2, 3)]
        (answer,) = runner.execute(StepBatch(chunks=[verify], sampling=[rows]))
        assert [token.token_id for token in answer] == accepted
    runner.close()


def test_masks_are_read_at_the_end_of_a_step_that_was_submitted_before_they_were_known(make_pair):
    path = make_pair("qwen2", "int8", **SHAPE).path
    cpu = load_runner(path, load_options(device="torch", num_blocks=8))
    runner = open_runner(path)
    held = SamplingRow(temperature=0.0, is_masked=True)
    tokens: list[int] = []

    def next_of(prompt: list[int], allowed: set[int]) -> int:
        logits = as_tensor(cpu.logits(prompt))[-1]
        return max(sorted(allowed), key=lambda token: float(logits[token]))

    masks = GivenMasks(lambda: [{7, 40, 71}])
    prompts = [chunk(PROMPT, 0), chunk([9, 9], 0, slot=1, blocks=(1, 3))]
    first = runner.submit(StepBatch(chunks=prompts, sampling=[[held], [greedy()]], masks=masks))
    assert masks.num_written == 0
    first.sample()
    later = GivenMasks(lambda: [{tokens[0], 50}])
    pending = [
        chunk([PENDING_TOKEN], 2, slot=1, blocks=(1, 3)),
        chunk([PENDING_TOKEN], len(PROMPT)),
    ]
    second = runner.submit(StepBatch(chunks=pending, sampling=[[greedy(1)], [held]], masks=later))
    assert later.num_written == 0
    free = []
    for step, row in ((first, 0), (second, 1)):
        answers = step.wait()
        tokens.append(answers[row][0].token_id)
        free.append(answers[1 - row][0].token_id)
        second.sample()
    assert (masks.num_written, later.num_written) == (1, 1)
    assert tokens[0] == next_of(PROMPT, {7, 40, 71})
    assert tokens[1] == next_of([*PROMPT, tokens[0]], {tokens[0], 50})
    assert free[0] == next_of([9, 9], set(range(72)))
    assert free[1] == next_of([9, 9, free[0]], set(range(72)))
    cpu.close()
    runner.close()


@pytest.mark.parametrize(
    "numbers", [{**SCALES, **BIASES}, LAYER_NORMS], ids=["scales", "layer-norms"]
)
def test_what_families_do_otherwise_is_computed_as_on_the_cpu(tmp_path, numbers):
    path = tmp_path / "model.zse"
    shape = {
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 64,
        "vocab_size": 72,
        "max_position": 64,
    }
    write_random_file(path, "int8", **shape, **numbers)
    cpu = load_runner(path, load_options(device="torch", num_blocks=8))
    expected = as_tensor(cpu.logits(PROMPT[:3]))
    cpu.close()
    runner = open_runner(path)
    found = as_tensor(runner.logits(PROMPT[:3], chunk_tokens=2))  # a prompt's chunk, then a token
    runner.close()
    assert float((found - expected).norm() / expected.norm()) < 2e-2


def test_where_every_row_is_single_a_prompt_has_the_bits_of_its_tokens_one_by_one(make_pair):
    runner = open_runner(make_pair("qwen2", "int8", **SHAPE).path, deterministic=True)
    row = SamplingRow(temperature=0.0, logprobs=2)

    def answer(kind: str, tokens: list[int], start: int, slot: int) -> list[SampledToken]:
        one = chunk(tokens, start, slot=slot, blocks=(slot,))._replace(kind=kind)
        rows = [row] * (len(tokens) if kind == "verify" else 1)
        return list(runner.execute(StepBatch(chunks=[one], sampling=[rows]))[0])

    together = answer("prefill", PROMPT[:2], 0, 0)
    for place, token in enumerate(PROMPT[:2]):
        last = answer("decode", [token], place, 1)
    assert last == together
    draft = last[0].token_id
    checked = answer("verify", [PROMPT[1], draft], 1, 0)
    assert checked[0] == last[0]
    assert checked[1:] == answer("decode", [draft], 2, 1)
    runner.close()


def test_many_rows_are_rounded_to_8_bits_unless_that_is_forbidden(make_pair, monkeypatch):
    for module in ("plans",):
        monkeypatch.setattr(f"zse.backends.gpu.{module}.BATCH_ROWS", 2)
    monkeypatch.setattr("zse.backends.gpu.plans.WIDENED_BYTES", 1 << 18)
    path = make_pair("qwen2", "int8", **SHAPE).path
    found = {}
    for precision in ("auto", "16"):
        with closing(open_runner(path, prefill_precision=precision)) as runner:
            found[precision] = as_tensor(runner.logits(PROMPT))
    with closing(load_runner(path, load_options(device="cpu", exact_activations=True))) as cpu:
        wanted = as_tensor(cpu.logits(PROMPT))
    assert not found["auto"].equal(found["16"])
    assert all((each - wanted).norm() <= 4e-2 * wanted.norm() for each in found.values())


@pytest.mark.parametrize("kv_dtype", ["bf16", "int4"])
def test_prompts_that_are_read_over_lines_give_the_answers_of_those_over_pages(
    make_pair, monkeypatch, kv_dtype
):
    path = make_pair("qwen2", "int8", **SHAPE).path
    found = {}
    for rows in (1, 1000):
        monkeypatch.setattr("zse.backends.gpu.step.LINES_ROWS", rows)
        with closing(open_runner(path, kv_dtype=kv_dtype)) as runner:
            others = [chunk([9, 8], 0, slot=1, blocks=(4, 0)), chunk(PROMPT[:2], 0)]
            runner.execute(StepBatch(chunks=others, sampling=[[], []]))
            rest = [chunk(PROMPT[2:], 2), chunk([7, 6, 5], 2, slot=1, blocks=(4, 0))]
            rows_of = [[replace(greedy(), logprobs=5)]] * 2
            found[rows] = runner.execute(StepBatch(chunks=rest, sampling=rows_of))
    for lines, pages in zip(found[1], found[1000], strict=True):
        for (token, score), (other, wanted) in zip(lines[0].top, pages[0].top, strict=True):
            assert token == other
            assert score == pytest.approx(wanted, abs=2e-2)


def test_kept_weights_give_the_answers_of_those_that_are_made_for_each_step(make_pair, monkeypatch):
    monkeypatch.setattr("zse.backends.gpu.plans.BATCH_ROWS", 2)
    monkeypatch.setattr("zse.backends.gpu.plans.WIDENED_BYTES", 1 << 18)
    path = make_pair("qwen2", "int4", **SHAPE).path
    found = {}
    for kept in ("keep", "make"):
        with closing(open_runner(path, prefill_weights=kept)) as runner:
            assert "prompt_weights" not in runner.memory_bytes()  # a start makes none
            found[kept] = as_tensor(runner.logits(PROMPT))
            again = as_tensor(runner.logits(PROMPT))
            assert again.equal(found[kept])
            assert ("prompt_weights" in runner.memory_bytes()) == (kept == "keep")
            if kept == "keep":
                assert runner._backend._give_up()
                after = as_tensor(runner.logits(PROMPT))
                assert not runner._backend._give_up()
    assert after.equal(found["make"])
    assert (
        found["keep"] - after
    ).norm() <= 1e-2 * after.norm()  # gates are rounded at other places


def test_steps_of_fewer_rows_read_kept_weights_too_in_graphs_and_after_they_are_given_up(
    make_pair, monkeypatch
):
    monkeypatch.setattr("zse.backends.gpu.plans.TURNED_ROWS", 1)
    path = make_pair("qwen2", "int4", **SHAPE).path
    cpu = load_runner(path, load_options(device="torch", num_blocks=8))
    wanted = as_tensor(cpu.logits(PROMPT))
    cpu.close()
    with closing(open_runner(path, prefill_weights="keep")) as runner:
        backend = runner._backend
        prompts = [chunk(PROMPT, 0), chunk([9, 8, 7], 0, slot=1, blocks=(4, 0))]
        first = runner.execute(StepBatch(chunks=prompts, sampling=[[greedy()]] * 2))
        found = as_tensor(runner.logits(PROMPT))
        assert (found - wanted).norm() <= 4e-2 * wanted.norm()
        answers = {}
        for given_up in (False, True):
            if given_up:
                assert backend._give_up()
                assert not backend._graphs
            for step in range(2):
                tokens = [answer[0].token_id for answer in first]
                chunks = [
                    chunk([tokens[0]], len(PROMPT)),
                    chunk([tokens[1]], 3, slot=1, blocks=(4, 0)),
                ]
                rows = [[replace(greedy(step + 1), logprobs=4)]] * 2
                answers[given_up, step] = runner.execute(StepBatch(chunks=chunks, sampling=rows))
            (captured,) = backend._graphs.values()
            assert captured.is_turned != given_up
        assert answers[False, 0] == answers[False, 1]
        for turned, plain in zip(answers[False, 1], answers[True, 1], strict=True):
            for (_, score), (_, other) in zip(turned[0].top, plain[0].top, strict=True):
                assert score == pytest.approx(other, abs=5e-2)


def test_the_head_is_read_turned_by_decode_steps_that_read_all_else_so(make_pair, monkeypatch):
    monkeypatch.setattr("zse.backends.gpu.plans.TURNED_ROWS", 1)
    path, read = make_pair("qwen2", "int4", **{**SHAPE, "vocab_size": 96}).path, []

    def note(launcher, weight, inputs, *args, **kwargs):
        read.append((weight.rows, inputs.rows))
        multiply_kept(launcher, weight, inputs, *args, **kwargs)

    monkeypatch.setattr("zse.backends.gpu.choosing.multiply_kept", note)
    scores = {}
    for kept in ("keep", "make"):
        with closing(open_runner(path, prefill_weights=kept)) as runner:
            prompts = [chunk(PROMPT, 0), chunk([9, 8, 7], 0, slot=1, blocks=(4, 0))]
            runner.execute(StepBatch(chunks=prompts, sampling=[[greedy()]] * 2))
            assert not read  # behind prompts 16 bits are read
            chunks = [chunk([5], len(PROMPT)), chunk([6], 3, slot=1, blocks=(4, 0))]
            rows = [[replace(greedy(1), logprobs=4)]] * 2
            found = runner.execute(StepBatch(chunks=chunks, sampling=rows))
            scores[kept] = [dict(answer[0].top) for answer in found]
            assert set(read) == ({(runner.vocab_size, 2)} if kept == "keep" else set())
            read.clear()
    for turned, usual in zip(scores["keep"], scores["make"], strict=True):
        both = turned.keys() & usual.keys()
        assert len(both) >= 2
        assert all(turned[token] == pytest.approx(usual[token], abs=5e-2) for token in both)


def test_a_prompt_is_prepared_behind_a_captured_step_of_weights_that_are_there(
    make_pair, monkeypatch
):
    monkeypatch.setattr("zse.backends.gpu.plans.TURNED_ROWS", 1)
    path = make_pair("qwen2", "int4", **SHAPE).path
    with closing(open_runner(path, prefill_weights="keep")) as runner:
        backend = runner._backend
        backend.warm(runner._forward)  # as ranks begin
        assert list(backend.prepare_prompt(runner._forward, len(PROMPT)))
        prepared = as_tensor(runner.logits(PROMPT))
    with closing(open_runner(path, prefill_weights="keep")) as runner:
        assert as_tensor(runner.logits(PROMPT)).equal(prepared)


def test_the_first_decode_step_is_launched_as_it_is_where_none_is_captured_and_then_captured(
    runner, path
):
    backend = runner._backend
    backend._graphs.clear()
    found = decode_with_penalties(runner, PROMPT, (2, 5), num_tokens=1, ahead=False)
    assert backend._graphs == {}
    longer = decode_with_penalties(runner, PROMPT, (2, 5), num_tokens=4, ahead=True)
    assert backend._graphs
    assert longer[: len(found)] == found
    again = decode_with_penalties(runner, PROMPT, (2, 5), num_tokens=4, ahead=True)
    assert again == longer
