"""Whole steps: any number of threads, every library that this processor runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from driven_steps import check_agreement, compile_driver, run_steps

from zse.kernels.native.library import load, runnable

if TYPE_CHECKING:
    from pathlib import Path

CASES = 60
SETS = [one.name for one in runnable()]


def driver_of(name: str, folder: Path) -> Path:
    return compile_driver("kernels_driver.c", folder / name, "-O1", load(name).path)


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drivers")
    return {name: driver_of(name, folder) for name in SETS}


@pytest.mark.parametrize("name", SETS)
def test_a_step_has_the_same_bits_with_any_number_of_threads(
    drivers: dict[str, Path], name: str
) -> None:
    path = load(name).path
    alone = run_steps([drivers[name], 1, CASES, 3], path)
    assert alone.count("case") == CASES
    for threads in (2, 5):
        assert run_steps([drivers[name], threads, CASES, 3], path) == alone


@pytest.mark.parametrize("name", SETS[1:])
def test_every_library_gives_nearly_the_numbers_of_the_best(
    drivers: dict[str, Path], name: str
) -> None:
    best = run_steps([drivers[SETS[0]], 2, CASES, 4], load(SETS[0]).path)
    check_agreement(run_steps([drivers[name], 2, CASES, 4], load(name).path), best)
