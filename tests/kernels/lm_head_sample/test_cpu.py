"""Sampling on a processor chooses what the reference chooses, token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native_operations import INSTRUCTIONS, run_operation, started_pool

from zse.backends.torch import sampling as reference
from zse.kernels.lm_head_sample.entries import adjustment_entries
from zse.kernels.lm_head_sample.reference import kept_probabilities
from zse.kernels.lm_head_sample.row import SamplingRow, uniform
from zse.kernels.native.codes import Kind, Register
from zse.kernels.native.structs import Operation, Sampling, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.types import SampledToken

GREEDY = SamplingRow(temperature=0.0)
NOTHING = float("-inf")


class Call:
    """One step's sampling: rows of logits, how each is sampled, masks of some."""

    def __init__(
        self,
        logits: torch.Tensor,
        rows: Sequence[SamplingRow],
        *,
        masks: Sequence[torch.Tensor | None] | None = None,
        draws: Sequence[float] | None = None,
    ) -> None:
        self.logits = logits.clone()
        self._kept: list[object] = []
        self.alternatives: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Tokens and log-probabilities that are reported for each row."""
        self.sampling = (Sampling * len(rows))()
        for index, (one, row) in enumerate(zip(self.sampling, rows, strict=True)):
            self._fill(one, row)
            mask = masks[index] if masks else None
            one.mask = None if mask is None else self._keep(mask)
            one.draw = draws[index] if draws else uniform(row.seed, row.step)

    def _keep(self, values: torch.Tensor) -> int:
        self._kept.append(values)
        return values.data_ptr()

    def _fill(self, one: Sampling, row: SamplingRow) -> None:
        one.known_token = -1 if row.known_token_id is None else row.known_token_id
        one.temperature, one.top_k = row.temperature, row.top_k
        one.top_p, one.min_p = row.top_p, row.min_p
        one.num_logprobs = -1 if row.logprobs is None else row.logprobs
        if row.known_token_id is None:
            entries = adjustment_entries([replace(row, banned_token_ids=())])
            one.num_entries = len(entries.tokens)
            one.entry_tokens = self._keep(torch.tensor(entries.tokens, dtype=torch.int32))
            one.entry_penalties = self._keep(torch.tensor(entries.penalties))
            one.entry_additions = self._keep(torch.tensor(entries.additions))
            banned = torch.tensor(list(row.banned_token_ids), dtype=torch.int32)
            one.num_banned, one.banned_tokens = len(banned), self._keep(banned)
        room = max(row.logprobs or 0, 1)
        lists = torch.full((room,), -7, dtype=torch.int32), torch.zeros(room)
        one.top_tokens, one.top_logprobs = map(self._keep, lists)
        self.alternatives.append(lists)

    def run(self, instructions: str = INSTRUCTIONS[0], num_threads: int = 1) -> list[int]:
        """Return the tokens."""
        count, vocab = self.logits.shape
        operation = Operation(kind=Kind.SAMPLE, input=Register.LOGITS, width=vocab)
        step = Step(num_wanted=count, sampling=self.sampling)
        with started_pool(instructions, num_threads) as pool:
            run_operation(pool, operation, step, {Register.LOGITS: self.logits})
        return [one.token for one in self.sampling]


def random_logits(rows: int, vocab: int, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab)
    return torch.randn(rows, vocab, generator=generator) * scale


def expected_of(
    logits: torch.Tensor, row: SamplingRow, mask: torch.Tensor | None = None
) -> SampledToken:
    return reference.sample(logits, row, mask)


# --- greedy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("vocab", [1, 50, 127, 128, 129, 1000, 151_936])
def test_greedy_takes_the_likeliest_token(instructions: str, vocab: int) -> None:
    logits = random_logits(3, vocab)
    found = Call(logits, [GREEDY] * 3).run(instructions, 2)
    assert found == logits.argmax(1).tolist()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_greedy_takes_the_lowest_identity_on_a_tie_within_and_across_blocks(
    instructions: str,
) -> None:
    logits = torch.zeros(4, 600)
    logits[0, [255, 256, 599]] = 4.0
    logits[1, [300, 301]] = 4.0
    logits[2, 0] = -0.0
    logits[3] = -5.0
    logits[3, [127, 128]] = -4.0
    assert Call(logits, [GREEDY] * 4).run(instructions) == [255, 300, 0, 127]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cut", [{}, {"top_k": 5, "top_p": 0.5, "min_p": 0.1}])
def test_rows_with_no_usable_number_still_give_a_token(temperature: float, cut: dict) -> None:
    logits = torch.full((5, 300), NOTHING)
    logits[1] = float("nan")
    logits[2, 270] = -5.0
    logits[2, 10] = float("nan")
    logits[3] = 1.0
    logits[3, 280] = float("inf")
    logits[4, [250, 260]] = -3e38
    row = SamplingRow(temperature=temperature, **cut)
    found = Call(logits, [row] * 5, draws=[0.3] * 5).run()
    assert found == [0, 0, 270, 280, 250]


# --- draws -------------------------------------------------------------------------------------

ROWS = [
    SamplingRow(),
    SamplingRow(temperature=0.2),
    SamplingRow(min_p=0.05),
    SamplingRow(top_k=1),
    SamplingRow(top_k=17),
    SamplingRow(top_k=599),
    SamplingRow(top_k=100_000, min_p=0.01),
    SamplingRow(top_p=0.2),
    SamplingRow(top_p=0.9, temperature=0.3),
    SamplingRow(top_p=0.97, temperature=2.0),
    SamplingRow(top_p=0.9999, temperature=5.0),
    SamplingRow(min_p=0.05, top_k=4),
    SamplingRow(min_p=0.02, top_p=0.8),
    SamplingRow(top_k=30, top_p=0.9),
    SamplingRow(top_k=30, top_p=0.999, min_p=0.001, temperature=1.7),
    SamplingRow(top_k=900, top_p=0.9, temperature=50.0),
]


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("vocab", [1, 50, 600, 5003])
def test_draws_equal_those_of_the_reference(instructions: str, vocab: int) -> None:
    logits = random_logits(1, vocab)
    rows = [replace(row, seed=seed) for seed in range(8) for row in ROWS]
    found = Call(logits.repeat(len(rows), 1), rows).run(instructions, 2)
    assert found == [expected_of(logits[0], row).token_id for row in rows]


@pytest.mark.parametrize("scale", [0.0, 0.01, 4.0])
def test_draws_from_a_large_vocabulary_equal_those_of_the_reference(scale: float) -> None:
    """With equal or nearly equal logits the candidates do not fit into the list."""
    logits = random_logits(1, 151_936, scale)
    rows = [replace(row, seed=seed) for seed, row in enumerate(ROWS)]
    rows += [SamplingRow(top_k=20, top_p=0.8, temperature=0.7, seed=seed) for seed in range(20)]
    rows += [SamplingRow(top_p=0.95, seed=seed) for seed in range(5)]
    found = [Call(logits, [row]).run()[0] for row in rows]
    assert found == [expected_of(logits[0], row).token_id for row in rows]


@pytest.mark.parametrize("row", [ROWS[0], ROWS[4], ROWS[9], ROWS[14]])
def test_draws_over_a_sweep_of_the_random_number_follow_the_kept_distribution(
    row: SamplingRow,
) -> None:
    logits, count = random_logits(1, 60, 2.0), 400
    draws = [(i + 0.5) / count for i in range(count)]
    found = Call(logits.repeat(count, 1), [row] * count, draws=draws).run()
    seen = torch.bincount(torch.tensor(found), minlength=60).double() / count
    expected = kept_probabilities(
        logits[0],
        temperature=row.temperature,
        top_k=row.top_k,
        top_p=row.top_p,
        min_p=row.min_p,
    )
    torch.testing.assert_close(seen, expected, rtol=0, atol=1.1 / count)


@pytest.mark.parametrize("cut", [{}, {"top_k": 3}, {"top_p": 0.5}])
def test_the_last_random_number_gives_a_token_that_may_come(cut: dict) -> None:
    logits = torch.full((1, 400), -1e4)
    logits[0, [5, 130, 131]] = torch.tensor([1.0, 1.0, 0.5])
    found = Call(logits, [SamplingRow(**cut)], draws=[1.0]).run()
    assert found[0] in {5, 130, 131}


logit_lists = st.lists(
    st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 0.5, 1.0, 3.0, NOTHING])
    # The reference orders probabilities: logits nearer than a float64 can tell are ties to it.
    | st.integers(-20_000, 20_000).map(lambda step: step / 1024),
    min_size=1,
    max_size=300,
)
sampling_rows = st.builds(
    SamplingRow,
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 3, 20, 49, 200]),
    top_p=st.sampled_from([1.0, 1.0, 0.3, 0.77, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3]),
    seed=st.integers(0, 1000),
)


def is_on_edge(logits: torch.Tensor, row: SamplingRow) -> bool:
    """Whether sums in another order could fall on the other side of a cut, or of the draw."""
    if row.is_greedy:
        return False
    probabilities = torch.softmax(logits.double() / row.temperature, 0)
    ratios = probabilities / probabilities.max()
    if row.min_p > 0.0 and float((ratios / row.min_p - 1.0).abs().min()) < 1e-9:
        return True
    probabilities[ratios < row.min_p] = 0.0
    ordered = probabilities.sort(descending=True, stable=True).values
    ordered = ordered[: row.top_k] if row.top_k > 0 else ordered
    running = ordered.cumsum(0)
    return row.top_p < 1.0 and float((running / running[-1] - row.top_p).abs().min()) < 1e-9


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(logit_lists, sampling_rows)
def test_draws_with_ties_equal_those_of_the_reference(
    values: list[float], row: SamplingRow
) -> None:
    logits = torch.tensor([values])
    assume(bool((logits > NOTHING).any()))
    assume(not is_on_edge(logits[0], row))
    assert Call(logits, [row]).run() == [expected_of(logits[0], row).token_id]


# --- adjustments and masks ---------------------------------------------------------------------

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


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_adjusted_logits_equal_those_of_the_reference(instructions: str) -> None:
    logits = random_logits(4, 300)
    call = Call(logits, PENALTIES)
    found = call.run(instructions)
    expected = torch.stack(
        [reference._adjust(r, row) for r, row in zip(logits, PENALTIES, strict=True)]
    )
    torch.testing.assert_close(call.logits, expected, rtol=1e-6, atol=1e-6)
    assert found == expected.argmax(1).tolist()


@pytest.mark.parametrize("vocab", [1, 31, 50, 256, 1000])
@pytest.mark.parametrize("row", [GREEDY, SamplingRow(seed=3), SamplingRow(seed=4, top_p=0.9)])
def test_only_tokens_of_the_mask_come(vocab: int, row: SamplingRow) -> None:
    logits, masks = random_logits(3, vocab), random_masks(2, vocab)
    which = [masks[0], None, masks[1]]
    found = Call(logits, [row] * 3, masks=which).run()
    expected = [expected_of(*each).token_id for each in zip(logits, [row] * 3, which, strict=True)]
    assert found == expected


def test_a_known_token_is_chosen_whatever_forbids_it() -> None:
    logits = random_logits(1, 300)
    row = replace(PENALTIES[0], known_token_id=7, logprobs=0)
    call = Call(logits, [row], masks=[torch.zeros(10, dtype=torch.int32)])
    assert call.run() == [7]
    logprob = torch.log_softmax(logits[0], 0)[7]
    assert call.sampling[0].logprob == pytest.approx(float(logprob), abs=1e-5)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("vocab", [300, 40_001])
def test_log_probabilities_are_the_models_own(instructions: str, vocab: int) -> None:
    logits, masks = random_logits(1, vocab), random_masks(1, vocab)
    row = replace(PENALTIES[0], temperature=0.8, top_k=5, logprobs=20)
    call = Call(logits, [row], masks=[masks[0]])
    [token] = call.run(instructions)
    expected = expected_of(logits[0], row, masks[0])
    assert token == expected.token_id
    assert call.sampling[0].logprob == pytest.approx(expected.logprob, abs=1e-5)
    tokens, logprobs = call.alternatives[0]
    assert tokens.tolist() == [token for token, _ in expected.top]
    own = torch.tensor([logprob for _, logprob in expected.top])
    torch.testing.assert_close(logprobs, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("logit", [6.0, -2.0])
def test_more_adjusted_tokens_than_are_kept_all_count(logit: float) -> None:
    vocab = 80_000
    logits = torch.full((1, vocab), logit - 5)
    logits[0, -1] = logit
    row = SamplingRow(
        temperature=0.0,
        prompt_token_ids=range(vocab),
        repetition_penalty=1.5,
        logit_bias={vocab - 2: 30.0, vocab - 1: 18.0},
        logprobs=0,
    )
    call = Call(logits, [row])
    assert call.run() == [vocab - 2]
    wanted = torch.log_softmax(logits[0].double(), 0)[vocab - 2]
    assert call.sampling[0].logprob == pytest.approx(float(wanted), abs=1e-5)


def test_a_tokens_log_probability_is_of_its_logit_before_its_penalty() -> None:
    logits = random_logits(1, 300)
    row = SamplingRow(temperature=0.0, logit_bias={40: 50.0}, logprobs=0)
    call = Call(logits, [row])
    assert call.run() == [40]
    expected = float(torch.log_softmax(logits[0], 0)[40])
    assert call.sampling[0].logprob == pytest.approx(expected, abs=1e-5)


def test_alternatives_end_where_the_vocabulary_ends_and_ties_go_to_the_lowest_identity() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, NOTHING, 2.0]])
    call = Call(logits, [SamplingRow(temperature=0.0, logprobs=7)])
    call.run()
    tokens, logprobs = call.alternatives[0]
    assert tokens.tolist() == [1, 2, 4, 0, 3, -7, -7]
    expected = torch.log_softmax(logits[0], 0)
    torch.testing.assert_close(logprobs[:5], expected[[1, 2, 4, 0, 3]])


def test_a_row_is_sampled_alike_alone_and_with_others_on_any_number_of_threads() -> None:
    logits = random_logits(len(ROWS), 3000)
    rows = [replace(row, seed=index, logprobs=1) for index, row in enumerate(ROWS)]
    together = Call(logits, rows)
    tokens = together.run(num_threads=3)
    for index, row in enumerate(rows):
        alone = Call(logits[index : index + 1], [row])
        assert alone.run() == [tokens[index]]
        assert alone.sampling[0].logprob == together.sampling[index].logprob
