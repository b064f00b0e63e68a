"""Each rank has a device, and its part of one that it shares."""

from __future__ import annotations

from typing import Any

import pytest

from zse.engine.ranks import devices
from zse.engine.ranks.devices import devices_of, have_one_each, options_of, warn_of_sharing
from zse.errors import UsageError
from zse.options import load_options

GB = 1 << 30


@pytest.fixture
def has_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "runs_on_gpu", lambda name: name.startswith(("cuda", "auto")))


@pytest.mark.usefixtures("has_gpus")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"device": "cuda"}, ["cuda:0", "cuda:1"]),
        ({"device": "auto"}, ["cuda:0", "cuda:1"]),
        ({"device": "cuda:2"}, ["cuda:2", "cuda:3"]),
        ({"device": "cuda", "gpus": "3, 1"}, ["cuda:3", "cuda:1"]),
        ({"device": "cuda", "gpus": "1,1"}, ["cuda:1", "cuda:1"]),
        ({"device": "cpu"}, ["cpu", "cpu"]),
    ],
)
def test_each_rank_has_a_device(options: dict[str, Any], names: list[str]) -> None:
    assert devices_of(load_options(tensor_parallel=2, **options)) == names


@pytest.mark.usefixtures("has_gpus")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda", "gpus": "0"}, "1 GPUs are named for 2 ranks"),
        ({"device": "cuda", "gpus": "0,x"}, "no list of numbers"),
        ({"device": "cuda", "gpus": "0,,1"}, "no list of numbers"),
        ({"device": "cuda", "gpus": "0,1,0"}, "3 GPUs are named for 2 ranks"),
        ({"device": "cpu", "gpus": "0,1"}, "the model runs on cpu"),
    ],
)
def test_gpus_that_do_not_fit_the_ranks_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        devices_of(load_options(tensor_parallel=2, **options))


@pytest.mark.usefixtures("has_gpus")
def test_a_gpu_that_is_named_twice_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_sharing(devices_of(load_options(tensor_parallel=4, device="cuda", gpus="0,1,2,3")))
    assert not caplog.records
    warn_of_sharing(devices_of(load_options(tensor_parallel=4, device="cuda", gpus="0,1,0,0")))
    assert [record.message for record in caplog.records] == [
        "GPU 0 computes for 3 ranks, which take turns"
    ]


@pytest.mark.usefixtures("has_gpus")
def test_ranks_of_one_gpu_share_its_memory_and_others_have_all_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "check_device", lambda name: int(name.partition(":")[2]))
    names = ["cuda:0", "cuda:1", "cuda:0"]

    def given(rank: int, **values: Any) -> tuple[str, float, float]:
        found = options_of(load_options(**values), names, rank, total=lambda _: {0: 80 * GB})
        return found.device.name, found.device.vram_gib, found.cache.kv_gib

    assert given(2) == given(0) == ("cuda:0", 40.0, 0.0)
    assert given(1) == ("cuda:1", 0.0, 0.0)
    bounded = {"vram_gib": 30.0, "kv_gib": 8.0}
    assert given(0, **bounded) == ("cuda:0", 15.0, 4.0)
    assert given(1, **bounded) == ("cuda:1", 30.0, 8.0)


def test_processes_of_a_processor_share_nothing_that_is_counted() -> None:
    given = load_options(kv_gib=4.0, device="cpu")
    assert options_of(given, ["cpu", "cpu"], 1).cache.kv_gib == 4.0


@pytest.mark.parametrize(
    ("devices", "is_so"),
    [
        (["cuda:0", "cuda:1"], True),
        (["cuda:1", "cuda:1"], False),
        (["cuda:0", "cuda:1", "cuda:0"], False),
        (["cpu", "cpu"], False),
    ],
)
def test_ranks_are_shown_one_gpu_where_each_has_its_own(devices: list[str], is_so: bool) -> None:
    assert have_one_each(devices) is is_so
