"""The runner: batch invariance, prefixes, sizes and errors."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
import torch
from logits import as_tensor

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.errors import ContextLengthError, DeviceError, EngineError, InvalidParameterError
from zse.format import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.decoder import logits_of
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCKS_EACH = 4
QUANTIZATIONS = ("bf16", "int8", "int4", "nf4")


@pytest.fixture(params=QUANTIZATIONS)
def runner(request: pytest.FixtureRequest, make_pair: Callable[..., Any]) -> Iterator[ModelRunner]:
    pair = make_pair("llama", request.param, intermediate_size=160)
    made = load_runner(
        pair.path, load_options(num_blocks=BLOCKS_EACH * 12, block_size=8, threads=1)
    )
    yield made
    made.close()


def tokens_of(slot: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(slot)
    return torch.randint(3, 320, (count,), generator=generator).tolist()


def chunk_of(slot: int, start: int, token_ids: list[int]) -> SequenceChunk:
    blocks = range(slot * BLOCKS_EACH, (slot + 1) * BLOCKS_EACH)
    return SequenceChunk(slot, token_ids, start, blocks, kind_of(len(token_ids)))


def run_logits(runner: ModelRunner, chunks: list[SequenceChunk]) -> list[torch.Tensor]:
    """Return the logits from which each chunk would be sampled."""
    backend = runner._backend
    wanted = [chunk._replace(wants_logits=True) for chunk in chunks]
    step = backend.begin(StepBatch(chunks=wanted, sampling=[()] * len(chunks)))
    rows = as_tensor(backend.join_rows([logits_of(backend, runner.spec, step)]))
    ends = accumulate(len(chunk.token_ids) for chunk in chunks)
    return [rows[end - 1] for end in ends]


def prefill(runner: ModelRunner, slots: range) -> None:
    for slot in slots:
        run_logits(runner, [chunk_of(slot, 0, tokens_of(slot, 5 + slot))])


def test_decode_has_the_same_bits_alone_and_in_every_batch(runner: ModelRunner) -> None:
    slots = range(11)
    prefill(runner, slots)
    one = {s: chunk_of(s, 5 + s, tokens_of(100 + s, 1)) for s in slots}
    alone = {s: run_logits(runner, [one[s]])[0] for s in slots}
    prompt = chunk_of(11, 0, tokens_of(11, 19))
    for order in ([*slots], [*slots][::-1], [3, 7], [5, 0, 9]):
        for extra in ([], [prompt]):
            found = run_logits(runner, [*extra, *(one[s] for s in order)])[len(extra) :]
            for slot, row in zip(order, found, strict=True):
                assert torch.equal(row, alone[slot])


def test_greedy_answers_do_not_depend_on_the_batch(runner: ModelRunner) -> None:
    def generate(groups: list[list[int]], steps: int) -> dict[int, list[int]]:
        answers: dict[int, list[int]] = {}
        for group in groups:
            pending = {s: tokens_of(s, 5 + s) for s in group}
            position = dict.fromkeys(group, 0)
            for _ in range(steps):
                chunks = [chunk_of(s, position[s], pending[s]) for s in group]
                rows = [[SamplingRow(temperature=0.0)]] * len(group)
                found = runner.execute(StepBatch(chunks=chunks, sampling=rows))
                for slot, (token,) in zip(group, found, strict=True):
                    position[slot] += len(pending[slot])
                    pending[slot] = [token.token_id]
                    answers.setdefault(slot, []).append(token.token_id)
        return answers

    slots = [*range(8)]
    assert generate([[s] for s in slots], 6) == generate([slots], 6)


def test_a_verify_chunk_answers_what_single_steps_do_to_the_bit(runner: ModelRunner) -> None:
    def rows_from(step: int, count: int, output: list[int]) -> list[SamplingRow]:
        return [
            SamplingRow(
                temperature=0.9,
                seed=3,
                step=step + place,
                logprobs=2,
                frequency_penalty=0.3,
                prompt_token_ids=prompt,
                output_token_ids=[*output, *drafts[:place]],
            )
            for place in range(count)
        ]

    prompt, drafts = tokens_of(0, 9), []
    single: list[Any] = []
    pending, start = prompt, 0
    while len(single) < 6:
        rows = rows_from(len(single), 1, [token.token_id for token in single])
        ((token,),) = runner.execute(
            StepBatch(chunks=[chunk_of(0, start, pending)], sampling=[rows])
        )
        start, pending = start + len(pending), [token.token_id]
        single.append(token)

    first, *right = [token.token_id for token in single[:5]]
    other = chunk_of(2, 0, tokens_of(2, 11))
    for wrong_at, accepted in ((None, 5), (3, 4), (0, 1)):
        drafts = [5 if place == wrong_at else token for place, token in enumerate(right)]
        run_logits(runner, [chunk_of(1, 0, prompt)])
        chunk = chunk_of(1, len(prompt), [first, *drafts])._replace(kind="verify")
        batch = StepBatch(chunks=[other, chunk], sampling=[(), rows_from(1, 5, [first])])
        found = runner.execute(batch)
        assert found[0] == []
        assert found[1] == single[1 : 1 + accepted]


def test_int8_prefill_has_the_same_linears_in_every_chunking(make_pair: Callable[..., Any]) -> None:
    pair = make_pair("llama", "int8", intermediate_size=160)
    runner = load_runner(
        pair.path, load_options(device="torch", num_blocks=4, block_size=8, threads=1)
    )
    with runner._backend.layer(runner.spec.layers[0]) as weights:
        linear = weights.qkv.matrix
    rows = torch.randn(150, 128, generator=torch.Generator().manual_seed(0))
    whole = linear.all_rows(rows)
    pieces = torch.cat([linear.all_rows(piece) for piece in torch.split(rows, 13)])
    assert torch.equal(whole, pieces)
    runner.close()


def test_prefix_blocks_are_shared_between_sequences(runner: ModelRunner) -> None:
    token_ids = tokens_of(0, 20)
    whole = run_logits(runner, [chunk_of(0, 0, token_ids)])[0]
    shared = SequenceChunk(
        sequence_slot=1,
        token_ids=token_ids[16:],
        start_position=16,
        block_table=[0, 1, BLOCKS_EACH],
        kind="prefill",
    )
    found = run_logits(runner, [shared])[0]
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)


def test_logits_leave_the_pool_alone(runner: ModelRunner) -> None:
    run_logits(runner, [chunk_of(0, 0, tokens_of(0, 9))])
    before = run_logits(runner, [chunk_of(0, 9, [5])])[0]
    runner.logits(tokens_of(4, 30))
    assert torch.equal(run_logits(runner, [chunk_of(0, 9, [5])])[0], before)


def test_logits_are_the_same_token_by_token(runner: ModelRunner) -> None:
    token_ids = tokens_of(4, 30)
    alone, together = (
        as_tensor(runner.logits(token_ids, chunk_tokens=chunk)) for chunk in (1, 512)
    )
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-4)


def test_a_context_longer_than_the_model_was_trained_for_is_cut_and_said(
    make_pair: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = make_pair("llama", "bf16").path
    for wanted, held, words in (
        (256, 256, ""),
        (100_000, 256, "the context is 256 tokens, as long as the model was trained for; 100000"),
    ):
        runner = load_runner(
            path, load_options(device="cpu", num_blocks=4, threads=1, max_context=wanted)
        )
        assert runner.max_position == held
        runner.close()
        assert words in caplog.text
        assert bool(words) == bool(caplog.text)


def test_chunks_without_a_sampling_row_return_nothing(runner: ModelRunner) -> None:
    chunks = [chunk_of(0, 0, tokens_of(0, 4)), chunk_of(1, 0, tokens_of(1, 4))]
    sampling = [(), [SamplingRow(temperature=0)]]
    answers = runner.execute(StepBatch(chunks=chunks, sampling=sampling))
    assert [len(answer) for answer in answers] == [0, 1]
    assert runner.execute(StepBatch(chunks=[], sampling=[])) == []


def test_a_submitted_step_is_answered_when_it_is_waited_for(runner: ModelRunner) -> None:
    def batch(slot: int) -> StepBatch:
        chunk = chunk_of(slot, 0, tokens_of(slot, 6))
        return StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0)]])

    assert not runner.looks_ahead
    steps = [runner.submit(batch(slot)) for slot in range(2)]
    answers = [step.wait() for step in steps]
    assert answers == [runner.execute(batch(slot)) for slot in range(2)]


@pytest.mark.parametrize(
    ("token_ids", "start", "blocks", "message"),
    [
        ([], 0, [0], "0 tokens"),
        ([1] * 9, 0, [0], "needs 2"),
        ([1], 8, [0], "needs 2"),
        ([1], 0, [999], "outside 0"),
        ([320], 0, [0], "token id"),
        ([-1], 0, [0], "token id"),
    ],
)
def test_bad_chunks_are_refused(
    token_ids: list[int], start: int, blocks: list[int], message: str, make_pair: Callable[..., Any]
) -> None:
    runner = load_runner(
        make_pair("llama", "bf16").path, load_options(num_blocks=4, block_size=8, threads=1)
    )
    chunk = SequenceChunk(0, token_ids, start, blocks, kind_of(len(token_ids)))
    with pytest.raises(EngineError, match=message):
        runner.execute(StepBatch(chunks=[chunk], sampling=[()]))
    with pytest.raises(EngineError, match="1 chunks with 0"):
        runner.execute(StepBatch(chunks=[chunk], sampling=[]))
    runner.close()


def test_logits_need_tokens_within_the_context(make_pair: Callable[..., Any]) -> None:
    path = make_pair("llama", "bf16").path
    runner = load_runner(path, load_options(num_blocks=1, threads=1, max_context=16))
    assert runner.max_position == 16
    with pytest.raises(ContextLengthError, match="17 tokens"):
        runner.logits([1] * 17)
    with pytest.raises(InvalidParameterError):
        runner.logits([])
    runner.close()


def test_pool_is_sized_from_bytes_or_from_the_context(make_pair: Callable[..., Any]) -> None:
    path = make_pair("llama", "bf16").path
    block_bytes = 2 * 2 * 32 * 2 * 32 * 2
    sized = load_runner(path, load_options(kv_gib=(5 * block_bytes + 1) / GIB, threads=1))
    assert sized.num_blocks == 5
    assert sized.memory_bytes()["kv_cache"] == 5 * block_bytes
    chosen = load_runner(path, load_options(threads=1, max_context=64))
    assert chosen.num_blocks == 2 * 16
    with pytest.raises(DeviceError, match="no room"):
        load_runner(path, load_options(kv_gib=1 / GIB, threads=1))
    sized.close()
    sized.close()
    chosen.close()


def test_reader_that_was_passed_in_stays_open(make_pair: Callable[..., Any]) -> None:
    with ZSEReader(make_pair("llama", "int8").path) as reader:
        load_runner(reader, load_options(num_blocks=1, threads=1)).close()
        assert reader.tensor("final_norm.weight").shape == (128,)


def test_missing_cuda_and_unknown_devices_are_clear(make_pair: Callable[..., Any]) -> None:
    path = make_pair("llama", "bf16").path
    with pytest.raises(DeviceError, match=r"CUDA|GPU"):
        load_runner(path, load_options(device="cuda:99", num_blocks=1))
    with pytest.raises(DeviceError, match="'tpu' is not known"):
        load_runner(path, load_options(device="tpu", num_blocks=1))
