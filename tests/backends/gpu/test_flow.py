"""The stream's way between GPUs: what is put into streams, in which order."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from zse.backends.gpu import flow
from zse.backends.gpu.flow import SLOTS, StreamFlow
from zse.backends.ranks import Gate, Gift, StageEdges
from zse.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW = 4 * 16
INBOX, NEXT = 1 << 20, 1 << 30
BELLS = 7 * 4096
MAPPED = 99 * 4096


class RecordingGpu:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.held: list[str] = []

    def _block(self, what: str, address: int, length: int = 0) -> Any:
        self.held.append(what)
        free = lambda: self.held.remove(what)  # noqa: E731
        export = lambda: os.memfd_create(what)  # noqa: E731
        return SimpleNamespace(address=address, length_bytes=length, free=free, export=export)

    def map_host(self, address: int, length: int) -> Any:
        assert (address, length) == (BELLS, 4096)
        return self._block("bells", MAPPED)

    def allocate_shared(self, length: int) -> Any:
        return self._block("inbox", INBOX, length)

    def open_shared(self, descriptor: int, length: int) -> Any:
        os.fstat(descriptor)
        return self._block("next", NEXT, length)

    def create_event(self) -> Any:
        self.held.append("event")
        return SimpleNamespace(
            record=lambda _stream: self.did.append(("record",)),
            synchronize=lambda: self.did.append(("synchronize",)),
            destroy=lambda: self.held.remove("event"),
        )

    def make_current(self) -> None:
        pass

    def wait_for_value(self, address: int, value: int, _stream: object) -> None:
        self.did.append(("wait", address - MAPPED, value))

    def write_value(self, address: int, value: int, _stream: object) -> None:
        self.did.append(("write", address - MAPPED, value))

    def copy_on_device(self, to: int, source: int, length: int, _stream: object) -> None:
        self.did.append(("copy", to, source, length))


class Link:
    """Three stages of one rank; the others give an inbox as large, or what they are told to."""

    def __init__(self, payload: bytes | None = None) -> None:
        self.payload, self.fails = payload, False

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        self.given = os.memfd_create("other")
        self.own = list(descriptors)
        return [Gift(self.payload or payload, (self.given,)), Gift(payload, tuple(descriptors))]

    def check(self) -> None:
        if self.fails:
            raise DeviceError("the ranks have failed")


def flow_of(gpu: RecordingGpu, link: Any, *, arrives: bool = True, leaves: bool = True) -> Any:
    edges = StageEdges(
        number=1,
        num_stages=3,
        num_gates=2,
        arrives=Gate(number=0, sent=BELLS, taken=BELLS + 64) if arrives else None,
        leaves=Gate(number=1, sent=BELLS + 128, taken=BELLS + 192) if leaves else None,
        link=link,
        receiver=0 if leaves else 1,
    )
    made: Any = gpu
    return StreamFlow(made, SimpleNamespace(), edges, hidden=16, most_rows=8)  # type: ignore[arg-type]


def is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def test_rows_come_when_their_bell_rings_and_then_their_place_is_free() -> None:
    gpu = RecordingGpu()
    way = flow_of(gpu, Link())
    slot = 8 * ROW
    way.receive(5000, 3)
    way.receive(5000, 8)
    assert gpu.did == [
        ("wait", 0, 1),
        ("copy", 5000, INBOX, 3 * ROW),
        ("write", 64, 1),
        ("wait", 0, 2),
        ("copy", 5000, INBOX + slot, 8 * ROW),
        ("write", 64, 2),
    ]


def test_who_sends_waits_for_a_place_only_where_all_are_taken() -> None:
    gpu = RecordingGpu()
    way = flow_of(gpu, Link())
    for _ in range(SLOTS + 1):
        way.send(5000, 2)
    waits = [did for did in gpu.did if did[0] == "wait"]
    assert waits == [("wait", 192, 1)]
    assert gpu.did[0] == ("copy", NEXT, 5000, 2 * ROW)
    assert gpu.did[-3:] == [
        ("wait", 192, 1),
        ("copy", NEXT, 5000, 2 * ROW),
        ("write", 128, SLOTS + 1),
    ]


def test_a_prompt_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "SLOT_ROWS", 4)
    gpu = RecordingGpu()
    way = flow_of(gpu, Link())
    way.send(5000, 6)
    copies = [did for did in gpu.did if did[0] == "copy"]
    slot = 4 * ROW
    assert copies == [
        ("copy", NEXT, 5000, 4 * ROW),
        ("copy", NEXT + slot, 5000 + 4 * ROW, 2 * ROW),
    ]


def test_a_bell_that_has_counted_round_is_waited_for_as_a_uint32() -> None:
    gpu = RecordingGpu()
    way = flow_of(gpu, Link())
    way._num_received = 2**32 - 1
    way.receive(0, 1)
    assert gpu.did[0] == ("wait", 0, 0)


def test_the_first_stage_receives_nothing_and_has_no_inbox() -> None:
    gpu = RecordingGpu()
    way = flow_of(gpu, Link(), arrives=False)
    way.receive(5000, 3)
    assert gpu.did == []
    assert way.length_bytes == 0
    assert "inbox" not in gpu.held


def test_what_a_stage_has_passed_on_is_waited_for_by_its_event_and_then_checked() -> None:
    gpu, link = RecordingGpu(), Link()
    way = flow_of(gpu, link)
    step = way.passed(2)
    assert step.wait() == [(), ()]
    assert gpu.did == [("record",), ("synchronize",)]
    link.fails = True
    with pytest.raises(DeviceError, match="the ranks have failed"):
        way.passed(1).wait()


def test_all_is_given_back_and_no_descriptor_stays() -> None:
    gpu, link = RecordingGpu(), Link()
    way = flow_of(gpu, link)
    assert is_closed(link.given)
    assert all(map(is_closed, link.own))
    assert {"inbox", "next", "bells"} <= set(gpu.held)
    way.close()
    assert gpu.held == []


def test_an_inbox_of_another_size_is_refused() -> None:
    gpu, link = RecordingGpu(), Link(json.dumps({"inbox_bytes": 5}).encode())
    with pytest.raises(DeviceError, match="rank 0 has another inbox"):
        flow_of(gpu, link)
    assert gpu.held == []
    assert is_closed(link.given)
