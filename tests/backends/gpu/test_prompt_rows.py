"""How many rows a step with prompts best has: as many as fill rounds of tiles."""

from __future__ import annotations

import random

import pytest

from zse.backends.gpu.prompt_rows import LEAST_SHARE, filled_rows
from zse.device.facts_of_gpus import A100, H200
from zse.kernels.linear.launch_8bit import TILE_TOKENS, relative_time

OF_A_7B = [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)] * 28


@pytest.mark.parametrize(("most", "best"), [(1024, 1024), (1280, 1152), (2048, 2048), (4096, 3584)])
def test_rows_of_a_7b_on_an_h200_are_those_that_were_measured_to_be_quickest(most, best):
    assert filled_rows(OF_A_7B, H200, most) == best


def test_a_row_takes_least_where_tiles_are_whole_rounds():
    # 132 multiprocessors, tiles of 128 tokens and 256 rows: eleven of a matrix of 2,816 rows.
    assert filled_rows([(2816, 4096)], H200, 12 * TILE_TOKENS + 40) == 12 * TILE_TOKENS
    assert filled_rows([(2816, 4096)], H200, 13 * TILE_TOKENS + 40) == 12 * TILE_TOKENS


@pytest.mark.parametrize("most", [0, 1, 5, 90, TILE_TOKENS - 1])
def test_fewer_rows_than_a_tile_are_left_as_they_are(most):
    assert filled_rows(OF_A_7B, H200, most) == most


def test_where_nothing_is_known_of_matrices_a_step_has_all_its_rows():
    assert filled_rows([], H200, 1000) == 1000


@pytest.mark.parametrize("device", [H200, A100], ids=["H200", "A100"])
def test_whatever_the_shapes_no_other_rows_are_much_better(device):
    draw = random.Random(3)
    for _ in range(60):
        shapes = [
            (16 * draw.randint(1, 2500), 128 * draw.randint(1, 150))
            for _ in range(draw.randint(1, 6))
        ]
        most = draw.randint(TILE_TOKENS * 2, 9000)
        rows = filled_rows(shapes, device, most)
        assert most * LEAST_SHARE <= rows <= most

        def each(count, shapes=shapes):
            return sum(relative_time(*shape, count, device) for shape in shapes) / count

        if rows % TILE_TOKENS == 0:
            others = range(TILE_TOKENS, most + 1, TILE_TOKENS)
            near = [count for count in others if count >= most * LEAST_SHARE]
            assert each(rows) <= 1.03 * min(map(each, near))
