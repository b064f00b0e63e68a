"""Truncation keeps exactly what the reference keeps, and the reference what the CPU backend keeps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from interpreted import InterpretedLauncher
from sampling_calls import SMALL, SamplingCall

from zse.backends.torch import sampling as cpu_sampling
from zse.kernels.lm_head_sample.reference import kept_probabilities
from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.kernels.lm_head_sample.variants import Tiles

FEW = settings(
    max_examples=6,
    phases=[Phase.generate],  # shrinking takes minutes in the interpreter
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def expected_of(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    return kept_probabilities(
        logits,
        temperature=row.temperature,
        top_k=row.top_k,
        top_p=row.top_p,
        min_p=row.min_p,
    )


def check(logits: torch.Tensor, rows: Sequence[SamplingRow], tiles: Tiles = SMALL) -> None:
    """Check kept sets, and that each drawn token is where its random number points."""
    uniforms = [(i + 0.5) / len(rows) for i in range(len(rows))]
    found = SamplingCall(logits, rows, uniforms=uniforms).run(InterpretedLauncher(), tiles=tiles)
    for i, row in enumerate(rows):
        expected = expected_of(logits[i], row)
        assert found.kept[i] == set(torch.nonzero(expected).flatten().tolist()), row
        assert found.tokens[i] in found.kept[i], row


def is_on_edge(logits: torch.Tensor, row: SamplingRow) -> bool:
    """Whether float32 sums could fall on the other side of top_p or min_p than float64 sums."""
    probabilities = torch.softmax(logits.double() / row.temperature, 0)
    ratios = probabilities / probabilities.max()
    if row.min_p > 0.0 and float((ratios / row.min_p - 1.0).abs().min()) < 1e-4:
        return True
    probabilities[ratios < row.min_p] = 0.0
    ordered = probabilities.sort(descending=True).values
    ordered = ordered[: row.top_k] if row.top_k > 0 else ordered
    running = ordered.cumsum(0)
    return row.top_p < 1.0 and float((running / running[-1] - row.top_p).abs().min()) < 1e-5


@pytest.mark.parametrize("vocab", [50, 600])
def test_kept_sets_of_smooth_logits_equal_the_reference(vocab: int) -> None:
    generator = torch.Generator().manual_seed(5)
    rows = [
        SamplingRow(top_k=1),
        SamplingRow(top_k=17),
        SamplingRow(top_k=vocab - 1),
        SamplingRow(top_k=vocab + 10, min_p=0.01),
        SamplingRow(top_p=0.2),
        SamplingRow(top_p=0.9, temperature=0.3),
        SamplingRow(top_p=0.97, temperature=2.0),
        SamplingRow(min_p=0.05),
        SamplingRow(min_p=0.05, top_k=4),
        SamplingRow(min_p=0.02, top_p=0.8),
        SamplingRow(top_k=30, top_p=0.9),
        SamplingRow(top_k=30, top_p=0.999, min_p=0.001, temperature=1.7),
    ]
    check(torch.randn(len(rows), vocab, generator=generator) * 3, rows)


def test_flat_rows_go_past_the_list_and_keep_the_same() -> None:
    """With 64 places in the list these need the second bins, and then the row itself."""
    generator = torch.Generator().manual_seed(6)
    rows = [
        SamplingRow(top_k=300),
        SamplingRow(top_p=0.6),
        SamplingRow(top_k=400, top_p=0.7),
        SamplingRow(top_k=150),
        SamplingRow(top_p=0.505),
        SamplingRow(top_k=200, top_p=0.303),
    ]
    logits = torch.randn(6, 600, generator=generator) * 0.3
    logits[3] = 2.0
    logits[4, :400] = 1.0
    logits[5, :500] = 0.0
    check(logits, rows, dataclasses.replace(SMALL, chunk=256))


def test_a_threshold_far_below_the_likeliest_is_found() -> None:
    logits = torch.linspace(-400.0, 0.0, 500)[None].repeat(3, 1)
    logits[1, 499] = 1e30
    logits[2, 3] = -3e38
    rows = [
        SamplingRow(top_k=100, temperature=50.0),
        SamplingRow(top_k=9),
        SamplingRow(top_p=0.999, temperature=90.0),
    ]
    tiles = dataclasses.replace(SMALL, chunk=256)
    found = SamplingCall(logits, rows).run(InterpretedLauncher(), tiles=tiles)
    for i in (0, 2):
        expected = torch.nonzero(expected_of(logits[i], rows[i])).flatten().tolist()
        assert found.kept[i] == set(expected)
    assert found.kept[1] == {499, *range(491, 499)}
    assert found.tokens[1] == 499


logit_lists = st.lists(
    st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 0.5, 1.0, 3.0, float("-inf")])
    # The CPU backend orders probabilities: logits nearer than a float64 can tell are ties to it.
    | st.integers(-20_000, 20_000).map(lambda step: step / 1024),
    min_size=50,
    max_size=90,
)
parameters = st.builds(
    SamplingRow,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 3, 20, 49, 200]),
    top_p=st.sampled_from([1.0, 1.0, 0.3, 0.77, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3]),
)


@FEW
@given(st.lists(st.tuples(logit_lists, parameters), min_size=2, max_size=2))
def test_kept_sets_with_ties_equal_the_reference(
    drawn: list[tuple[list[float], SamplingRow]],
) -> None:
    width = max(len(values) for values, _ in drawn)
    logits = torch.tensor(
        [[*values, *[float("-inf")] * (width - len(values))] for values, _ in drawn]
    )
    rows = [row for _, row in drawn]
    assume(bool((logits.max(1).values > float("-inf")).all()))
    assume(any(row.top_k or row.top_p < 1.0 or row.min_p > 0.0 for row in rows))
    assume(not any(is_on_edge(one, row) for one, row in zip(logits, rows, strict=True)))
    check(logits, rows)


@pytest.mark.parametrize(
    "row",
    [
        SamplingRow(top_k=7),
        SamplingRow(top_p=0.8, temperature=1.4),
        SamplingRow(min_p=0.2),
        SamplingRow(top_k=12, top_p=0.9, min_p=0.01),
    ],
)
def test_the_reference_keeps_what_the_cpu_backend_draws(
    row: SamplingRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(60, generator=torch.Generator().manual_seed(8)) * 2
    expected = expected_of(logits, row)
    steps = 2000
    seen = torch.zeros(60, dtype=torch.float64)
    for i in range(steps):
        monkeypatch.setattr(cpu_sampling, "uniform", lambda seed, step, i=i: (i + 0.5) / steps)
        seen[cpu_sampling.sample(logits, row).token_id] += 1 / steps
    torch.testing.assert_close(seen, expected, rtol=0, atol=1.1 / steps)


def test_draws_over_a_sweep_of_the_random_number_follow_the_kept_distribution() -> None:
    """Tokens above the bracket come first, then those of its list, each by identity."""
    generator = torch.Generator().manual_seed(9)
    count = 16
    logits = torch.randn(1, 40, generator=generator).repeat(count, 1) * 2
    row = SamplingRow(top_p=0.8, temperature=1.2)
    uniforms = [(i + 0.5) / count for i in range(count)]
    found = SamplingCall(logits, [row] * count, uniforms=uniforms).run(InterpretedLauncher())
    seen = torch.zeros(40, dtype=torch.float64)
    for token in found.tokens:
        seen[token] += 1 / count
    torch.testing.assert_close(seen, expected_of(logits[0], row), rtol=0, atol=2.01 / count)
