"""Codes by error feedback: less is lost of what comes out, by the same scales."""

from __future__ import annotations

import pytest
import torch

from zse.format.as_torch import dequantize
from zse.format.schemes import Scheme, parts_for
from zse.format.spec import TensorEntry
from zse.quantize.calibrate.feedback import DAMPING, Feedback, round_with_feedback
from zse.quantize.calibrate.grids import SCHEMES, grid_of
from zse.quantize.calibrate.moments import Moments
from zse.quantize.scheme import quantize_rows

COLUMNS, GROUP = (
    128,
    {
        Scheme.INT4: 64,
        Scheme.INT3: 64,
        Scheme.INT2: 32,
        Scheme.NF4: 64,
        Scheme.NL4: 32,
        Scheme.INT8: 0,
    },
)


def correlated_inputs(tokens: int = 600, columns: int = COLUMNS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    mixed = torch.randn(tokens, 24, generator=generator) @ torch.randn(
        24, columns, generator=generator
    )
    return mixed + 0.5 * torch.randn(tokens, columns, generator=generator)


def values_of(scheme: Scheme, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    shape, size = (parts["qweight"].shape[0], COLUMNS), GROUP[scheme]
    assert [role for role, _, _ in parts_for(scheme, shape, size)] == list(parts)
    entry = TensorEntry(name="w", scheme=scheme, shape=shape, group_size=size, parts=())
    return dequantize(entry, parts)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_feedback_loses_less_of_the_outputs_than_rounding_alone(scheme: Scheme) -> None:
    inputs = correlated_inputs()
    rows = torch.randn(48, COLUMNS, generator=torch.Generator().manual_seed(6))
    moments = Moments(COLUMNS, is_full=True)
    moments.add(inputs)
    parts = quantize_rows(scheme, rows, GROUP[scheme], moments.squares())
    grid = grid_of(scheme, parts, GROUP[scheme])
    feedback = Feedback.of(0, moments.products()[0], moments.count)
    fed = grid.parts(round_with_feedback(grid, rows, [feedback]))

    def lost(found: dict[str, torch.Tensor]) -> float:
        return float((inputs @ (values_of(scheme, found) - rows).t()).square().sum())

    assert lost(fed) < 0.6 * lost(parts)
    scales = set(parts) - {"qweight"}
    assert all(torch.equal(fed[role], parts[role]) for role in scales)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_inputs_that_have_nothing_in_common_are_rounded_to_what_is_nearest(scheme: Scheme) -> None:
    rows = torch.randn(16, COLUMNS, generator=torch.Generator().manual_seed(7))
    parts = quantize_rows(scheme, rows, GROUP[scheme])
    grid = grid_of(scheme, parts, GROUP[scheme])
    feedback = Feedback.of(0, torch.diag(torch.linspace(3, 1, COLUMNS)), 600)
    nearest = [grid.nearest(rows[:, column], column)[0] for column in range(COLUMNS)]
    assert torch.equal(round_with_feedback(grid, rows, [feedback]), torch.stack(nearest, 1))


@pytest.mark.parametrize("slope", [0.3, 1.0])
@pytest.mark.parametrize("tokens", [64, 256, 1024])
def test_what_few_tokens_say_helps_on_others_too(tokens: int, slope: float) -> None:
    """Feedback by what was seen loses less on what was not, however little was seen."""
    generator = torch.Generator().manual_seed(9)
    turned = torch.linalg.qr(torch.randn(COLUMNS, COLUMNS, generator=generator))[0]
    sizes = torch.arange(1, COLUMNS + 1.0) ** -slope
    scales = torch.exp(0.7 * torch.randn(COLUMNS, generator=generator))
    true = (turned * sizes) @ turned.t() * scales * scales.unsqueeze(1)
    seen = torch.randn(tokens, COLUMNS, generator=generator) @ torch.linalg.cholesky(true).t()
    rows = torch.randn(32, COLUMNS, generator=generator)
    moments = Moments(COLUMNS, is_full=True)
    moments.add(seen)
    parts = quantize_rows(Scheme.INT4, rows, 64, moments.squares())
    grid = grid_of(Scheme.INT4, parts, 64)

    def lost(feedback: Feedback) -> float:
        fed = grid.parts(round_with_feedback(grid, rows, [feedback]))
        apart = values_of(Scheme.INT4, fed) - rows
        return float(((apart @ true) * apart).sum())

    (products,) = moments.products()
    shrunk = lost(Feedback.of(0, products, tokens))
    alone = lost(Feedback.of(0, torch.diag(products.diagonal()), tokens))
    assert shrunk < 1.05 * alone
    assert shrunk < 1.02 * lost(Feedback.of(0, products, 10**9))  # as if all of it were known


def test_the_factor_makes_the_damped_products_again() -> None:
    moments = Moments(COLUMNS, is_full=True)
    moments.add(correlated_inputs())
    (products,) = moments.products()
    feedback = Feedback.of(0, products.clone(), 2 * COLUMNS)
    products = (products + torch.diag(products.diagonal())) / 2  # two tokens an input
    wanted = products + DAMPING * products.diagonal().mean() * torch.eye(COLUMNS)
    wanted = wanted[feedback.order][:, feedback.order]
    unit = feedback.factor + torch.eye(COLUMNS)
    inner = torch.linalg.solve(unit, torch.linalg.solve(unit, wanted).t())
    assert torch.allclose(inner, torch.diag(inner.diagonal()), atol=1e-3 * float(wanted.max()))
    assert torch.equal(feedback.factor.tril(), torch.zeros(COLUMNS, COLUMNS))


def test_each_range_of_columns_is_fed_forward_on_its_own() -> None:
    rows = torch.randn(8, COLUMNS, generator=torch.Generator().manual_seed(8))
    parts = quantize_rows(Scheme.INT4, rows, 64)
    grid, inputs = grid_of(Scheme.INT4, parts, 64), correlated_inputs()
    half = COLUMNS // 2
    halves = [
        Feedback.of(first, part.t() @ part, 600)
        for first, part in ((0, inputs[:, :half]), (half, inputs[:, half:]))
    ]
    codes = round_with_feedback(grid, rows, halves)
    changed = rows.clone()
    changed[:, :half] *= 0.9
    assert torch.equal(round_with_feedback(grid, changed, halves)[:, half:], codes[:, half:])
