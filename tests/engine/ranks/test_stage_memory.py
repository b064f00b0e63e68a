"""Stages get as many layers as their GPUs have room for, and GPUs with plenty are not asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.engine.ranks.stage_memory import stage_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GB = 1 << 30


def has(*sizes: int) -> Callable[[Sequence[int]], dict[int, int]]:
    return lambda ordinals: {ordinal: sizes[ordinal] for ordinal in ordinals}


def never(_ordinals: Sequence[int]) -> dict[int, int]:
    pytest.fail("a GPU was opened to be asked")


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "zse.engine.ranks.stage_memory.check_device", lambda name: int(name.partition(":")[2])
    )


def test_processors_and_gpus_with_plenty_are_not_asked() -> None:
    assert stage_bytes(["cpu", "cpu"], 2, 9 * GB, free=never) == ()
    two = ["cuda:0", "cuda:1"]
    assert stage_bytes(two, 2, 78 * GB, total=has(80 * GB, 80 * GB), free=never) == ()


@pytest.mark.parametrize("sizes", [(80 * GB, 80 * GB), (24 * GB, 80 * GB)])
def test_gpus_that_are_full_or_differ_say_what_is_free_the_last_stages_first(
    sizes: tuple[int, int],
) -> None:
    found = stage_bytes(
        ["cuda:0", "cuda:1"], 2, 90 * GB, total=has(*sizes), free=has(20 * GB, 70 * GB)
    )
    assert found == (69 * GB, 19 * GB)  # stage 0 is the last rank's


def test_a_stage_of_several_gpus_has_what_the_fullest_of_them_has_for_each() -> None:
    names = [f"cuda:{number}" for number in (2, 0, 1, 3)]
    room = has(40 * GB, 30 * GB, 20 * GB, 10 * GB)
    found = stage_bytes(names, 2, 200 * GB, total=room, free=room)
    assert found == (2 * 9 * GB, 2 * 19 * GB)
    bounded = stage_bytes(names, 2, 200 * GB, 16 * GB, total=room, free=room)
    assert bounded == (2 * 9 * GB, 2 * 15 * GB)


def test_stages_on_one_gpu_have_their_part_of_it() -> None:
    two = ["cuda:0", "cuda:0"]
    found = stage_bytes(two, 2, 60 * GB, total=has(80 * GB), free=has(70 * GB))
    assert found == (34 * GB, 34 * GB)
    assert stage_bytes(two, 2, 39 * GB, total=has(80 * GB), free=never) == ()
