"""The planner takes a measured choice where there is one that fits, and its model's elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from zse.device.facts_of_gpus import A100, H200, L4
from zse.kernels.linear.definitions import IMMA_DIRECT, IMMA_INT8
from zse.kernels.linear.direct_forms import DIRECT_FORMATS
from zse.kernels.linear.plan import (
    ANY_ROWS,
    LinearPlan,
    candidates,
    plan_any_rows,
    plan_linear,
    tile_of,
)
from zse.kernels.linear.variants import dot, gemv
from zse.kernels.linear.weight import LinearWeight

WEIGHT = LinearWeight(scheme="int4", rows=4608, columns=3584, weights=0, group_size=128)
MEASURED = gemv("int4", 128, 1, r=8, t=1, c=32)


@dataclass
class Table:
    """Measured choices that have one answer."""

    choice: dict[str, str | int] | None
    asked: list[tuple[str, str]] = field(default_factory=list)

    def lookup(self, table: str, shape: str) -> dict[str, str | int] | None:
        self.asked.append((table, shape))
        return self.choice


def plan(choice: dict[str, str | int] | None, max_splits: int | None = None) -> LinearPlan:
    return plan_linear(
        WEIGHT, 1, quantized=True, device=H200, tuning=Table(choice), max_splits=max_splits
    )


def test_a_measured_choice_is_taken() -> None:
    table = Table({"variant": MEASURED.key, "splits": 3})
    found = plan_linear(WEIGHT, 1, quantized=True, device=H200, tuning=table)
    assert (found.variant, found.splits) == (MEASURED, 3)
    assert table.asked == [("linear.int4.g128.a8.rows1", "3584x4608")]


def test_a_choice_with_more_splits_than_the_reader_takes_is_passed_over() -> None:
    choice: dict[str, str | int] = {"variant": MEASURED.key, "splits": 3}
    assert plan(choice, max_splits=3).splits == 3
    assert plan(choice, max_splits=2) == plan(None, max_splits=2)
    assert plan({**choice, "splits": 10**6}) == plan(None)


@pytest.mark.parametrize(
    "key",
    [
        "linear.no_such_kernel[]w4s1",
        gemv("int4", 64, 1, r=4, t=4, c=8).key,
        gemv("nf4", 64, 1, r=4, t=4, c=8).key,
        dot("int4", 128, bn=128, bm=16, stages=3).key,
    ],
)
def test_a_choice_that_does_not_multiply_such_a_matrix_is_passed_over(key: str) -> None:
    assert plan({"variant": key, "splits": 1}) == plan(None)


@pytest.mark.parametrize("max_splits", [None, 1, 2])
@pytest.mark.parametrize("rows", [1, 3, 17, 256])
def test_the_model_takes_a_candidate_within_the_reader_s_limit(
    rows: int, max_splits: int | None
) -> None:
    found = plan_linear(WEIGHT, rows, quantized=False, device=H200, max_splits=max_splits)
    assert found in candidates(WEIGHT, rows, quantized=False)
    assert found.splits <= (max_splits or 16)


def test_little_shared_memory_gets_small_tiles() -> None:
    found = plan_linear(WEIGHT, 256, quantized=False, device=L4)
    assert tile_of(found.variant)[1] <= 64


def test_a_gpu_that_holds_fewer_threads_gets_more_splits_of_a_small_matrix() -> None:
    few = replace(H200, multiprocessors=16)
    assert plan_linear(WEIGHT, 1, quantized=True, device=few).splits < plan(None).splits


@pytest.mark.parametrize(("scheme", "group"), [("int4", 128), ("nf4", 64), ("int8", 0)])
def test_a_plan_for_any_rows_splits_a_sum_alike_and_never_adds_by_threads(
    scheme: str, group: int
) -> None:
    weight = LinearWeight(scheme=scheme, rows=4608, columns=3584, group_size=group, weights=0)
    plans = [
        plan_any_rows(weight, rows, quantized=True, device=H200) for rows in (1, 4, 16, 40, 700)
    ]
    best = plan_linear(weight, ANY_ROWS, quantized=True, device=H200)
    assert {plan.splits for plan in plans} == {best.splits}
    assert {plan.variant.kernel for plan in plans} <= {best.variant.kernel, IMMA_DIRECT}
    tiles = [tile_of(plan.variant)[1] for plan in plans]
    assert tiles[0] < tiles[-1] == tile_of(best.variant)[1]
    assert [plan.rows for plan in plans] == [1, 4, 16, 40, 700]


def test_a_plan_of_16_bits_for_any_rows_has_one_form() -> None:
    weight = LinearWeight(scheme="int4", rows=4608, columns=3584, group_size=128, weights=0)
    plans = [plan_any_rows(weight, rows, quantized=False, device=H200) for rows in (1, 40, 700)]
    assert len({(plan.variant, plan.splits) for plan in plans}) == 1


@pytest.mark.parametrize(("rows", "few"), [(8, True), (9, False)])
def test_eight_tokens_meet_codes_of_three_bits_without_tensor_cores(rows: int, few: bool) -> None:
    weight = replace(WEIGHT, scheme="int3", group_size=64)
    found = plan_linear(weight, rows, quantized=True, device=H200)
    assert ("gemv" in found.variant.key) == few
    assert found.grid[2] == (2 if few else 1)
    assert "imma" in plan_any_rows(weight, rows, quantized=True, device=H200).variant.key


HEAD = LinearWeight(scheme="int8", rows=152064, columns=3584, weights=0)


@pytest.mark.parametrize("rows", [65, 128, 256])
def test_a_head_of_many_rows_is_multiplied_by_programs_that_stay_where_there_are_some(
    rows: int,
) -> None:
    found = plan_linear(HEAD, rows, quantized=True, device=H200, max_splits=1)
    assert "imma_int8_apart" in found.variant.key
    assert found.grid == (132, 1, 1)
    elsewhere = replace(H200, target="sm_80")
    others = [
        plan_linear(HEAD, 64, quantized=True, device=H200),
        plan_linear(HEAD, rows, quantized=True, device=elsewhere, max_splits=1),
        plan_linear(replace(HEAD, rows=32000), 128, quantized=True, device=H200),
        plan_any_rows(HEAD, rows, quantized=True, device=H200),
    ]
    assert not any("apart" in plan.variant.key for plan in others)
    assert others[1].variant.key == "linear.imma_int8[BN=64,BM=128,STAGES=4]w8s4"


@pytest.mark.parametrize("rows", [5, 8, 9, 16])
@pytest.mark.parametrize(("scheme", "group"), DIRECT_FORMATS)
def test_on_hopper_weights_of_some_tokens_go_to_tensor_cores_directly(
    scheme: str, group: int, rows: int
) -> None:
    weight = LinearWeight(scheme=scheme, rows=3584, columns=3584, weights=0, group_size=group)
    found = plan_linear(weight, rows, quantized=True, device=H200)
    assert found.variant.kernel is IMMA_DIRECT
    assert 2 * H200.multiprocessors > found.grid[0] * found.grid[1] > H200.multiprocessors
    assert tile_of(found.variant)[1] == (8 if rows <= 8 else 16)
    for device, count in ((A100, rows), (L4, rows), (H200, 4), (H200, 17)):
        other = plan_linear(weight, count, quantized=True, device=device)
        assert other.variant.kernel is not IMMA_DIRECT


def test_a_head_of_whole_bytes_has_tiles_enough_without_them() -> None:
    head = LinearWeight(scheme="int8", rows=152064, columns=3584, weights=0)
    found = plan_linear(head, 8, quantized=True, device=H200, max_splits=1)
    assert found.variant.kernel is IMMA_INT8


def test_tokens_whose_bits_are_those_of_any_number_take_them_with_the_splits_of_many() -> None:
    many, few = (plan_any_rows(WEIGHT, rows, quantized=True, device=H200) for rows in (100, 8))
    assert few.variant.kernel is IMMA_DIRECT
    assert few.splits == many.splits
