"""Greedy choice, draws, adjustments and log-probabilities, in the interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from interpreted import InterpretedLauncher
from sampling_calls import GREEDY_PADDING, SMALL, UNTOUCHED, Sampled, SamplingCall

from zse.backends.torch import sampling as cpu_sampling
from zse.errors import UnsupportedModelError
from zse.kernels.lm_head_sample.arrays import SamplingKind
from zse.kernels.lm_head_sample.launch import cap_logits
from zse.kernels.lm_head_sample.reference import kept_probabilities
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.kernels.lm_head_sample.workspace import workspace_bytes

GREEDY = SamplingRow(temperature=0.0)
NOTHING = float("-inf")


def run(logits: torch.Tensor, *rows: SamplingRow, **options: Any) -> Sampled:
    kind = options.pop("kind", None)
    return SamplingCall(logits, rows, **options).run(InterpretedLauncher(), kind=kind)


def random_logits(rows: int, vocab: int, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab)
    return torch.randn(rows, vocab, generator=generator) * scale


@pytest.mark.parametrize("vocab", [1, 50, 256, 1000])
def test_greedy_takes_the_likeliest_token(vocab: int) -> None:
    logits = random_logits(2, vocab)
    found = run(logits, GREEDY, GREEDY, slots=[3, 1])
    assert found.tokens == logits.argmax(1).tolist()
    assert found.last_tokens == [
        UNTOUCHED,
        found.tokens[1],
        UNTOUCHED,
        found.tokens[0],
        UNTOUCHED,
    ]


def test_greedy_takes_the_lowest_identity_on_a_tie_within_and_across_blocks() -> None:
    logits = torch.zeros(3, 600)
    logits[0, [255, 256, 599]] = 4.0
    logits[1, [300, 301]] = 4.0
    logits[2, 0] = -0.0
    assert run(logits, GREEDY, GREEDY, GREEDY).tokens == [255, 300, 0]


def test_a_row_is_greedy_below_a_hundred_thousandth_of_a_degree_and_drawn_from_there_on() -> None:
    cold, drawn = (
        [SamplingRow(temperature=value, seed=seed) for seed in range(8)] for value in (9e-6, 1.1e-5)
    )
    logits = torch.tensor([0.0, 4.0, 4.0]).repeat(8, 1)
    assert SamplingKind.of(cold, 3) == SamplingKind()
    for kind in (SamplingKind(random=True), SamplingKind(random=True, truncated=True)):
        assert set(run(logits, *cold, kind=kind).tokens) == {1}
        assert (
            set(run(logits, *drawn).tokens) == set(run(logits, *drawn, kind=kind).tokens) == {1, 2}
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_with_no_usable_number_still_give_a_token(temperature: float) -> None:
    logits = torch.full((4, 300), NOTHING)
    logits[1] = float("nan")
    logits[2, 270] = -5.0
    logits[2, 10] = float("nan")
    logits[3] = 1.0
    logits[3, 280] = float("inf")
    row = SamplingRow(temperature=temperature)
    for kind in (
        SamplingKind(random=temperature > 0.0),
        SamplingKind(random=temperature > 0.0, truncated=True),
    ):
        found = run(logits, row, row, row, row, kind=kind)
        assert found.tokens == [0, 0, 270, 280]


def test_truncation_of_rows_with_no_usable_number_still_gives_a_token() -> None:
    logits = torch.full((2, 300), NOTHING)
    logits[1, 299] = 3.0
    row = SamplingRow(top_k=5, top_p=0.5, min_p=0.1)
    assert run(logits, row, row).tokens == [0, 299]


@pytest.mark.parametrize("truncated", [False, True])
def test_draws_follow_the_distribution(truncated: bool) -> None:
    logits = torch.tensor([0.05, 0.4, 0.0, 0.3, 0.2, 0.05]).log()[None].repeat(8, 1)
    cut = {"top_k": 4, "top_p": 0.95} if truncated else {}
    middles = [(i + 0.5) / 8 for i in range(8)]
    found = run(logits, *[SamplingRow(**cut)] * 8, uniforms=middles).tokens
    expected = kept_probabilities(
        logits[0], temperature=1.0, top_k=cut.get("top_k", 0), top_p=cut.get("top_p", 1), min_p=0
    )
    running = expected.cumsum(0)
    assert found == [int(torch.searchsorted(running, u, right=True)) for u in middles]


def test_a_draw_walks_blocks_and_tokens_in_order_of_identity() -> None:
    logits = random_logits(1, 1000, scale=2.0).repeat(12, 1)
    uniforms = [0.0, 1.0, *(0.03 + 0.1 * i for i in range(10))]
    row = SamplingRow(temperature=1.3)
    found = run(logits, *[row] * 12, uniforms=uniforms).tokens
    running = torch.softmax(logits[0].double() / 1.3, 0).cumsum(0)
    expected = [min(int(torch.searchsorted(running, u, right=True)), 999) for u in uniforms]
    assert found == expected


def test_one_batch_mixes_every_way_of_sampling() -> None:
    rows = [
        SamplingRow(temperature=0.0, top_k=3, top_p=0.5),
        SamplingRow(),
        SamplingRow(top_k=1),
        SamplingRow(min_p=1.0, temperature=2.0),
        SamplingRow(top_p=1e-6),
        GREEDY_PADDING,
    ]
    logits = random_logits(6, 500)
    logits[5] = float("nan")
    found = run(logits, *rows, slots=[0, 1, 2, 3, 4, 9])
    best = logits[:5].argmax(1).tolist()
    assert [found.tokens[i] for i in (0, 2, 3, 4)] == [best[i] for i in (0, 2, 3, 4)]
    assert found.last_tokens[:5] == found.tokens[:5]
    assert 0 <= found.tokens[5] < 500
    assert found.last_tokens[5:9] == [UNTOUCHED] * 4
    alone = [
        run(logits[i : i + 1], row, kind=SamplingKind(random=True))
        for i, row in enumerate(rows[:2])
    ]
    assert [one.tokens[0] for one in alone] == found.tokens[:2]


PENALTIES = [
    SamplingRow(
        temperature=0.0,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        prompt_token_ids=[1, 2, 3],
        output_token_ids=[3, 3, 4, 290],
        logit_bias={4: 2.5, 7: -1.0, 5000: 3.0, -1: 2.0},
        banned_token_ids=[7, 9, 4],
    ),
    SamplingRow(temperature=0.0, repetition_penalty=0.8, prompt_token_ids=[5, 5, 299]),
    GREEDY,
    SamplingRow(temperature=0.0, logit_bias={0: 100.0}),
]


def test_adjustments_equal_those_of_the_cpu_backend() -> None:
    logits = random_logits(4, 300)
    found = run(logits, *PENALTIES)
    expected = torch.stack(
        [cpu_sampling._adjust(r, row) for r, row in zip(logits, PENALTIES, strict=True)]
    )
    torch.testing.assert_close(found.logits, expected, rtol=1e-6, atol=1e-6)
    assert found.tokens == expected.argmax(1).tolist()
    assert found.tokens[3] == 0


@pytest.mark.parametrize("token", [3, 4, 1, 7, 9, 250])
def test_a_token_that_only_the_device_knows_is_counted_like_a_known_one(token: int) -> None:
    """Seen twice, seen and biased, in the prompt, banned and biased, banned, new."""
    penalized, *others = PENALTIES
    output = [*penalized.output_token_ids, token]
    ahead = replace(penalized, step=len(output))
    known = replace(ahead, output_token_ids=output)
    rows = [others[0], ahead, others[2]]
    logits = random_logits(3, 300)
    found = run(logits, *rows, slots=[4, 2, 0], pending={1: token})
    expected = run(logits, others[0], known, others[2], slots=[4, 2, 0])
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-6, atol=1e-6)
    assert found.tokens == expected.tokens


@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1.5}, {"presence_penalty": 2.0}, {"frequency_penalty": 0.5}]
)
def test_the_first_token_of_an_answer_is_counted_before_the_host_knows_it(penalty: dict) -> None:
    ahead = SamplingRow(temperature=0.0, step=1, logprobs=2, **penalty)
    logits = random_logits(1, 300)
    best = int(logits.argmax())
    found = run(logits, ahead, pending={0: best})
    expected = run(logits, replace(ahead, output_token_ids=[best]))
    assert found.tokens == expected.tokens
    torch.testing.assert_close(found.logits, logits, rtol=0, atol=0)  # for the log-probabilities
    torch.testing.assert_close(found.logprobs, expected.logprobs)


def test_log_probabilities_are_those_before_adjustments() -> None:
    rows = [
        SamplingRow(
            logprobs=3,
            temperature=0.7,
            top_k=5,
            banned_token_ids=[int(t)],
            logit_bias={40: 20.0},
        )
        for t in random_logits(2, 700).argmax(1)
    ]
    logits = random_logits(2, 700)
    found = run(logits, *rows)
    logprobs = torch.log_softmax(logits, 1)
    torch.testing.assert_close(found.logits, logits, rtol=0, atol=0)
    assert found.tokens == [40, 40]
    torch.testing.assert_close(found.logprobs, logprobs[:, 40], rtol=1e-5, atol=1e-5)
    top = logprobs.topk(20)
    assert found.top_tokens.tolist() == top.indices.tolist()
    torch.testing.assert_close(found.top_logprobs, top.values, rtol=1e-5, atol=1e-5)


MASKED = SamplingRow(temperature=0.0, is_masked=True)


def random_masks(rows: int, vocab: int, share: float = 0.3) -> torch.Tensor:
    """Words with random bits, and past the vocabulary all of them: nothing may come of these."""
    generator = torch.Generator().manual_seed(vocab)
    words = -(-vocab // 32)
    bits = torch.rand(rows, words * 32, generator=generator) < share
    bits[:, 0] = True
    bits[:, vocab:] = True
    powers = (2 ** torch.arange(32)).to(torch.int64)
    values = (bits.view(rows, words, 32) * powers).sum(2)
    return torch.where(values >= 2**31, values - 2**32, values).to(torch.int32)


@pytest.mark.parametrize("vocab", [1, 31, 50, 256, 1000])
def test_a_mask_leaves_the_tokens_that_it_allows_and_other_rows_alone(vocab: int) -> None:
    logits, masks = random_logits(3, vocab), random_masks(2, vocab)
    found = run(logits, MASKED, GREEDY, MASKED, masks=masks)
    expected = logits.clone()
    expected[0][cpu_sampling.forbidden(masks[0], vocab)] = NOTHING
    expected[2][cpu_sampling.forbidden(masks[1], vocab)] = NOTHING
    torch.testing.assert_close(found.logits, expected, rtol=0, atol=0)
    assert found.tokens == expected.argmax(1).tolist()


def test_what_is_drawn_follows_the_distribution_of_what_is_allowed() -> None:
    vocab, count = 40, 120
    logits, masks = random_logits(1, vocab), random_masks(1, vocab)
    rows = [SamplingRow(temperature=1.3, seed=seed, is_masked=True) for seed in range(count)]
    found = run(logits.repeat(count, 1), *rows, masks=masks.repeat(count, 1))
    allowed = logits[0].masked_fill(cpu_sampling.forbidden(masks[0], vocab), NOTHING)
    expected = kept_probabilities(allowed, temperature=1.3, top_k=0, top_p=1.0, min_p=0.0)
    drawn = torch.bincount(torch.tensor(found.tokens), minlength=vocab) / count
    assert not drawn[expected == 0].any()
    torch.testing.assert_close(drawn.double(), expected, rtol=0, atol=0.15)


def test_truncation_keeps_of_what_is_allowed() -> None:
    vocab = 300
    logits, masks = random_logits(2, vocab), random_masks(2, vocab)
    rows = [
        SamplingRow(is_masked=True, top_k=5),
        SamplingRow(is_masked=True, temperature=0.9, top_p=0.8),
    ]
    found = run(logits, *rows, masks=masks)
    for kept, values, mask, row in zip(found.kept, logits, masks, rows, strict=True):
        allowed = values.masked_fill(cpu_sampling.forbidden(mask, vocab), NOTHING)
        expected = kept_probabilities(
            allowed, temperature=row.temperature, top_k=row.top_k, top_p=row.top_p, min_p=0.0
        )
        assert kept == set(torch.nonzero(expected).flatten().tolist())


def test_a_mask_comes_after_penalties_and_log_probabilities_are_of_neither() -> None:
    vocab = 300
    logits, masks = random_logits(2, vocab), random_masks(2, vocab)
    rows = [replace(row, is_masked=True, logprobs=3) for row in PENALTIES[:2]]
    found = run(logits, *rows, masks=masks)
    adjusted = [cpu_sampling._adjust(r, row) for r, row in zip(logits, rows, strict=True)]
    chosen = [
        int(values.masked_fill(cpu_sampling.forbidden(mask, vocab), NOTHING).argmax())
        for values, mask in zip(adjusted, masks, strict=True)
    ]
    assert found.tokens == chosen
    logprobs = torch.log_softmax(logits, 1)
    own = logprobs[torch.arange(2), torch.tensor(chosen)]
    torch.testing.assert_close(found.logprobs, own, rtol=1e-5, atol=1e-5)
    top = logprobs.topk(20)
    assert found.top_tokens.tolist() == top.indices.tolist()
    torch.testing.assert_close(found.top_logprobs, top.values, rtol=1e-5, atol=1e-5)


def test_alternatives_end_where_the_vocabulary_ends_and_ties_go_to_the_lowest_identity() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, NOTHING, 2.0]])
    found = run(logits, SamplingRow(temperature=0.0, logprobs=20))
    assert found.top_tokens[0].tolist() == [1, 2, 4, 0, 3, *[-1] * 15]
    expected = torch.log_softmax(logits[0], 0)
    torch.testing.assert_close(found.top_logprobs[0, :5], expected[[1, 2, 4, 0, 3]])
    assert float(found.logprobs[0]) == pytest.approx(float(expected[1]))


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_logits_are_bounded_in_place(softcap: float) -> None:
    logits = random_logits(3, 1500, scale=40.0)
    logits[1, 7] = 1e30
    expected = softcap * torch.tanh(logits / softcap)
    cap_logits(InterpretedLauncher(), logits.data_ptr(), rows=3, vocab=1500, softcap=softcap)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_the_launches_are_few() -> None:
    logits = random_logits(2, 64)
    counts = {}
    for name, rows in {
        "greedy": [GREEDY, GREEDY],
        "random": [GREEDY, SamplingRow()],
        "truncated": [GREEDY, SamplingRow(min_p=0.1)],
        "logprobs": [GREEDY, SamplingRow(temperature=0.0, logprobs=0)],
        "banned": [GREEDY, SamplingRow(temperature=0.0, banned_token_ids=[1])],
        "masked": [GREEDY, MASKED],
    }.items():
        launcher = InterpretedLauncher()
        SamplingCall(logits, rows, masks=random_masks(2, 64)).run(launcher)
        counts[name] = len(launcher.launched)
    few = {"greedy": 2, "random": 2, "truncated": 5, "logprobs": 4, "banned": 4, "masked": 3}
    assert counts == few


def test_a_vocabulary_beyond_the_kernels_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="524289 tokens; expected 1 to 524288"):
        workspace_bytes(1, 524289)
    assert workspace_bytes(1, 262208) < 400_000
    assert SMALL.max_vocab == 4096
