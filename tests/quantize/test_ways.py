"""Streams and page-locked memory are a GPU's: here what torch is asked for stands for them."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch

from zse.quantize import ways
from zse.quantize.ways import MAX_LOCKED_BYTES, Lanes, Plain

HERE = torch.device("cpu")


class Accelerator:
    """What is asked of torch's streams, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.current: Any = "everybody's"
        self.is_locked: list[bool] = []
        asked, empty = self.asked, torch.empty

        class Stream:
            def __init__(self, device: torch.device) -> None:
                self.device = device

            def synchronize(self) -> None:
                asked.append("waited")

        def locked(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            self.is_locked.append(pin_memory)
            return empty(*shape, **options)

        def copied(to: torch.Tensor, source: torch.Tensor, **options: bool) -> torch.Tensor:
            assert options == {"non_blocking": True}
            asked.append("copied")
            return to.set_(source.clone())

        monkeypatch.setattr(torch, "Stream", Stream)
        monkeypatch.setattr(torch.accelerator, "current_stream", lambda _device: self.current)
        monkeypatch.setattr(torch.accelerator, "set_stream", self.set_stream)
        monkeypatch.setattr(ways.torch, "empty", locked)
        monkeypatch.setattr(torch.Tensor, "copy_", copied)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda rows: asked.append("locked") or rows)

    def set_stream(self, stream: Any) -> None:
        self.current = stream


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    return Accelerator(monkeypatch)


def test_each_thread_computes_on_a_stream_of_its_own(accelerator: Accelerator) -> None:
    lanes, found = Lanes(HERE), []

    def compute() -> None:
        with lanes.open():
            found.append(accelerator.current)

    for _ in range(2):
        thread = Thread(target=compute)
        thread.start()
        thread.join()
        compute()
    first, second, third, fourth = found
    assert second is fourth  # this thread's
    assert len({id(one) for one in (first, second, third)}) == 3
    assert {one.device for one in found} == {HERE}


def test_the_stream_before_is_current_again_whatever_happened(accelerator: Accelerator) -> None:
    with pytest.raises(ZeroDivisionError), Lanes(HERE).open():
        _ = 1 / (accelerator.current == "everybody's")
    assert accelerator.current == "everybody's"


def test_rows_come_from_page_locked_memory(accelerator: Accelerator) -> None:
    rows = torch.arange(6.0).view(2, 3)
    assert torch.equal(Lanes(HERE).there(rows), rows)
    assert accelerator.asked == ["locked"]


def test_room_for_a_chunk_is_page_locked_and_for_more_is_not(accelerator: Accelerator) -> None:
    lanes = Lanes(HERE)
    for length_bytes in (4096, MAX_LOCKED_BYTES + 1):
        room = lanes.memory(length_bytes)
        assert (room.dtype, room.shape) == (torch.uint8, (length_bytes,))
    assert accelerator.is_locked == [True, False]


def test_parts_are_complete_when_they_are_back(accelerator: Accelerator) -> None:
    parts = {"qweight": torch.arange(6, dtype=torch.uint8).view(2, 3), "scale": torch.ones(2)}
    lanes = Lanes(HERE)
    with lanes.open():
        found = lanes.back(parts)
    assert accelerator.asked == ["copied", "copied", "waited"]
    assert accelerator.is_locked == [True, True]
    assert list(found) == list(parts)
    assert all(torch.equal(found[role], part) for role, part in parts.items())


def test_what_needs_no_lane_is_copied_as_it_is() -> None:
    parts = {"data": torch.arange(4)}
    plain = Plain(HERE)
    with plain.open():
        assert plain.there(parts["data"]) is parts["data"]
        assert plain.back(parts)["data"] is parts["data"]
