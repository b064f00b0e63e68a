"""The kernels of experts equal their references, in the interpreter."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "linear"))

import torch
from interpreted import InterpretedLauncher
from matrices import Inputs, Matrix, make_inputs, make_matrix, relative_error

from zse.errors import UnsupportedModelError
from zse.kernels.experts.launch import (
    combine,
    direct_products,
    grouped_products,
    pair_products,
)
from zse.kernels.experts.plan import PairPlan, pair_tile, plan_direct, plan_pairs
from zse.kernels.experts.reference import TOLERANCE
from zse.kernels.experts.reference import pair_products as reference
from zse.kernels.experts.variants import DIRECT_FORMATS, direct_form, is_sorted, pair_variant
from zse.kernels.experts.weight import StackedWeight, reads_few_rows, takes_slot
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.linear.reference import QUANTIZED_TOLERANCE
from zse.kernels.linear.weight import LinearWeight
from zse.kernels.norm.reference import dequantize, quantize
from zse.kernels.route.launch import Choice, Grouping
from zse.kernels.route.reference import group_by_expert

EXPERTS = 5
FORMATS = [
    ("int4", 128), ("int4", 64), ("int4", 32), ("nf4", 128), ("nf4", 64), ("nf4", 32),
    ("mxfp4", 32), ("int8", 0), ("bf16", 0), ("fp16", 0),
]  # fmt: skip


@dataclass
class Experts:
    """Stacked matrices and a shared one, and what they stand for."""

    stacked: Matrix
    shared: Matrix
    bias: torch.Tensor

    @property
    def weight(self) -> StackedWeight:
        return StackedWeight(
            stack=self.stacked.weight, experts=EXPERTS, bias=self.bias.data_ptr(),
            shared=self.shared.weight,
        )  # fmt: skip

    def matrices(self, *, quantized: bool) -> torch.Tensor:
        """Return float64 [experts + 1, rows, columns]; the shared expert is the last."""
        parts = [self.stacked, self.shared]
        values = torch.cat([p.int8_values if quantized else p.exact for p in parts])
        return values.view(EXPERTS + 1, self.shared.weight.rows, -1)

    def biases(self) -> torch.Tensor:
        return torch.cat((self.bias, torch.zeros(1, self.bias.shape[1]))).double()


def make_experts(scheme: str, group: int, rows: int, columns: int) -> Experts:
    """Return experts of ``rows`` x ``columns``; the shared one lies 64 bytes aligned from them."""
    whole = make_matrix(scheme, rows * (EXPERTS + 1), columns, group)
    codes, scales = whole.kept
    weight, end = whole.weight, rows * EXPERTS
    moved = {"weights": codes[end:].data_ptr()}
    if scales.numel():
        moved["scales"] = scales[end:].data_ptr()
    stacked = replace(weight, rows=end)
    shared = replace(weight, rows=rows, **moved)
    return Experts(
        stacked=Matrix(stacked, whole.exact[:end], whole.int8_values[:end], whole.kept),
        shared=Matrix(shared, whole.exact[end:], whole.int8_values[end:], whole.kept),
        bias=torch.randn(EXPERTS, rows, generator=torch.Generator().manual_seed(rows)),
    )


@dataclass
class Routed:
    """A choice of three of the experts and the shared one for each token."""

    chosen: torch.Tensor
    weights: torch.Tensor

    @property
    def choice(self) -> Choice:
        rows, slots = self.chosen.shape
        return Choice(
            rows=rows, slots=slots, experts=self.chosen.data_ptr(), weights=self.weights.data_ptr()
        )


def make_choice(rows: int) -> Routed:
    generator = torch.Generator().manual_seed(rows)
    chosen = torch.stack([torch.randperm(EXPERTS, generator=generator)[:2] for _ in range(rows)])
    chosen[:, 0][chosen[:, 0] == 3] = 1  # one expert has few tokens
    chosen = torch.cat((chosen, torch.full((rows, 1), EXPERTS)), 1)
    return Routed(chosen.int().contiguous(), torch.rand(rows, 3, generator=generator))


def inputs_for(experts: Experts, rows: int, *, quantized: bool) -> Inputs:
    columns = experts.weight.columns
    if not quantized or columns % 128 == 0:
        return make_inputs(rows, columns, quantized=quantized)
    wide = torch.zeros(rows, -(-columns // 128) * 128)
    wide[:, :columns] = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    codes, scales, sums = quantize(wide)
    exact = dequantize(codes, scales).double()[:, :columns]
    codes = codes[:, :columns].contiguous()
    activation = Quantized(
        rows=rows, columns=columns, codes=codes.data_ptr(), scales=scales.data_ptr(),
        sums=sums.data_ptr(),
    )  # fmt: skip
    return Inputs(activation=activation, exact=exact, kept=(codes, scales, sums))


def check_pairs(scheme: str, group: int, columns: int, splits: int, *, is_down: bool) -> None:
    """Multiply two tokens with their experts, and hold the sums against the reference."""
    experts, routed = make_experts(scheme, group, 32, columns), make_choice(2)
    quantized = scheme not in {"bf16", "fp16"}
    inputs = inputs_for(experts, 6 if is_down else 2, quantized=quantized)
    plan = PairPlan(
        variant=pair_variant(scheme, group, r=4, t=4, c=8), splits=splits, pairs=6, rows=32
    )
    out = torch.full((plan.output_bytes // 4,), float("nan"))
    found = pair_products(
        InterpretedLauncher(), experts.weight, inputs.activation, routed.choice, out.data_ptr(),
        plan, is_down=is_down,
    )  # fmt: skip
    parts = out.view(found.splits, found.rows, 32).double()
    exact = inputs.exact.view(2, 3, -1) if is_down else inputs.exact
    expected = reference(
        exact, routed.chosen, experts.matrices(quantized=quantized), experts.biases()
    )
    if is_down:
        assert found.splits == 3 * splits
        expected = (expected * routed.weights.unsqueeze(-1)).sum(1)
    tolerance = QUANTIZED_TOLERANCE if quantized else TOLERANCE
    assert relative_error(parts.sum(0), expected.flatten(0, -2)) <= tolerance


@pytest.mark.parametrize(("scheme", "group"), FORMATS)
def test_a_few_tokens_read_the_matrices_of_their_experts(scheme: str, group: int) -> None:
    check_pairs(scheme, group, 512, 2, is_down=False)


@pytest.mark.parametrize(("scheme", "group"), FORMATS)
def test_what_goes_down_is_weighted_and_summed_over_the_slots(scheme: str, group: int) -> None:
    check_pairs(scheme, group, 256, 1, is_down=True)


@pytest.mark.parametrize(("scheme", "group"), [("int4", 64), ("mxfp4", 32), ("int8", 0)])
def test_rows_that_end_in_part_of_a_group_of_activations(scheme: str, group: int) -> None:
    check_pairs(scheme, group, 320, 1, is_down=False)
    check_pairs(scheme, group, 192, 2, is_down=True)


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize(("scheme", "group"), FORMATS)
def test_tokens_of_an_expert_are_multiplied_together(
    scheme: str, group: int, is_down: bool
) -> None:
    check_groups(scheme, group, 21, is_down=is_down)


@pytest.mark.parametrize("rows", [1, 90, 330])
def test_every_tile_of_pairs_and_experts_with_none(rows: int) -> None:
    check_groups("int4", 128, rows, is_down=False)


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize(("scheme", "group"), DIRECT_FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(7, 256), (45, 320)])
def test_tokens_of_an_expert_are_multiplied_together_by_int8_activations(
    scheme: str, group: int, rows: int, columns: int, is_down: bool
) -> None:
    columns = columns // 128 * 128 if scheme == "int4" else columns
    experts, routed = make_experts(scheme, group, 48, columns), make_choice(rows)
    order, starts = group_by_expert(routed.chosen, EXPERTS + 1)
    grouping = Grouping(
        pairs=3 * rows, groups=EXPERTS + 1, order=order.data_ptr(), starts=starts.data_ptr()
    )
    inputs = inputs_for(experts, 3 * rows if is_down else rows, quantized=True)
    assert isinstance(inputs.activation, Quantized)
    out = torch.full((3 * rows, 48), float("nan"))
    found = direct_products(
        InterpretedLauncher(), experts.weight, inputs.activation, routed.choice, grouping,
        out.data_ptr(), direct_form(scheme, 8), is_down=is_down,
    )  # fmt: skip
    exact = inputs.exact.view(rows, 3, -1) if is_down else inputs.exact
    expected = reference(exact, routed.chosen, experts.matrices(quantized=True), experts.biases())
    if is_down:
        expected = (expected * routed.weights.unsqueeze(-1)).sum(1)
    parts = out.view(found.splits, found.rows, 48).double()
    assert (found.splits, found.rows) == ((3, rows) if is_down else (1, 3 * rows))
    assert relative_error(parts.sum(0), expected.flatten(0, -2)) <= QUANTIZED_TOLERANCE


def check_groups(scheme: str, group: int, rows: int, *, is_down: bool) -> None:
    experts, routed = make_experts(scheme, group, 144, 128), make_choice(rows)
    order, starts = group_by_expert(routed.chosen, EXPERTS + 1)
    grouping = Grouping(
        pairs=3 * rows, groups=EXPERTS + 1, order=order.data_ptr(), starts=starts.data_ptr()
    )
    inputs = make_inputs(3 * rows if is_down else rows, 128, quantized=False)
    out = torch.full((3 * rows, 144), float("nan"), dtype=torch.bfloat16)
    launcher = InterpretedLauncher()
    assert isinstance(inputs.activation, Plain)
    grouped_products(
        launcher, experts.weight, inputs.activation, routed.choice, grouping, out.data_ptr(),
        is_down=is_down,
    )  # fmt: skip
    assert f"BM={pair_tile(3 * rows, EXPERTS + 1)}," in launcher.launched[0]
    exact = inputs.exact.view(rows, 3, -1) if is_down else inputs.exact
    expected = reference(exact, routed.chosen, experts.matrices(quantized=False), experts.biases())
    assert relative_error(out, expected.flatten(0, -2)) <= TOLERANCE


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("has_shared", [False, True])
def test_what_experts_made_is_summed_by_its_weights(has_shared: bool, adds: bool) -> None:
    torch.manual_seed(2)
    rows, slots, hidden = 3, 4, 1040
    stream, pairs = torch.randn(rows, hidden), torch.randn(rows, slots, hidden).bfloat16()
    weights, shared = torch.rand(rows, slots), torch.randn(2, rows, hidden)
    parts = pairs.float() * weights.unsqueeze(-1)
    if has_shared:
        parts[:, -1] = shared.sum(0) * weights[:, -1:]
    expected = 0.5 * parts.sum(1) + (stream if adds else 0)
    combine(
        InterpretedLauncher(), stream.data_ptr(),
        Plain(rows=rows * slots, columns=hidden, values=pairs.data_ptr()),
        Choice(rows=rows, slots=slots, experts=0, weights=weights.data_ptr()),
        shared=Partials(rows=rows, columns=hidden, splits=2, values=shared.data_ptr())
        if has_shared else None,
        adds=adds, scale=0.5,
    )  # fmt: skip
    torch.testing.assert_close(stream, expected)


def test_a_plan_is_that_of_one_matrix_with_the_rows_of_all_pairs() -> None:
    weight = make_experts("int4", 128, 48, 512).weight
    launcher = InterpretedLauncher()
    plan = plan_pairs(weight, 8, launcher.device, max_splits=1)
    assert (plan.pairs, plan.rows, plan.splits) == (8, 48, 1)
    assert plan.output_bytes == 8 * 48 * 4
    assert plan.variant.kernel.name == "experts.pair_products"


def test_a_shared_expert_takes_a_slot_if_it_is_one_more_of_the_same_form() -> None:
    experts = make_experts("int4", 128, 48, 512)
    stack, shared = experts.stacked.weight, experts.shared.weight
    assert takes_slot(shared, stack, EXPERTS)
    for other in ({"rows": 96}, {"columns": 256}, {"scheme": "nf4"}, {"group_size": 64}):
        assert not takes_slot(replace(shared, **other), stack, EXPERTS)


def test_only_16_bit_weights_read_a_few_rows_without_int8_activations() -> None:
    for scheme, group in FORMATS:
        weight = make_experts(scheme, group, 16, 128).weight
        assert reads_few_rows(weight, quantized=True)
        assert reads_few_rows(weight, quantized=False) == (scheme in {"bf16", "fp16"})


def test_activations_of_another_width_are_refused() -> None:
    experts, routed = make_experts("int4", 128, 48, 512), make_choice(2)
    inputs = make_inputs(2, 256, quantized=True)
    plan = plan_pairs(experts.weight, 6, InterpretedLauncher().device)
    with pytest.raises(UnsupportedModelError, match="expected 2 x 512"):
        pair_products(
            InterpretedLauncher(), experts.weight, inputs.activation, routed.choice, 0, plan,
            is_down=False,
        )  # fmt: skip


def test_tokens_of_an_expert_share_its_weights_where_they_are_some_and_a_kernel_takes_them() -> (
    None
):
    stack = LinearWeight(scheme="int4", rows=64, columns=512, weights=0, group_size=128)
    weight = StackedWeight(stack=stack, experts=4)

    def planned(rows: int, pairs: int, target: str = "sm_90", **other: object) -> str | None:
        changed = replace(weight, stack=replace(stack, **other))
        form = plan_direct(changed, rows, pairs, 128, target)
        return None if form is None else f"{dict(form.constants)['BM']} {is_sorted(form)}"

    assert planned(8, 64) == "8 False"
    assert [planned(32, pairs) for pairs in (129, 512, 2048)] == ["8 True", "8 True", "32 True"]
    assert planned(8, 64, scheme="mxfp4", group_size=32) == "8 False"
    assert planned(129, 1032) is planned(8, 64, "sm_89") is planned(8, 64, group_size=64) is None
