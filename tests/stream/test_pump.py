"""Layers come into slots round and round: the right bytes, never too early, whatever goes wrong."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from host_gpu import DeviceLostError, HostGpu
from placed_bytes import make_file

from zse.errors import SourceChangedError, StoreError
from zse.stream.fit import plan_window
from zse.stream.pinned import PinnedCopies
from zse.stream.pump import LayerPump, PumpOptions
from zse.stream.source import LocalSource
from zse.stream.window import WindowBlocks, WindowPlacement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = make_file(layers=8)


class Block:
    def __init__(self, gpu: HostGpu, length_bytes: int) -> None:
        self.address, self.length_bytes = gpu.memory(length_bytes), length_bytes

    def free(self) -> None:
        pass


class WindowGpu(HostGpu):
    def allocate(self, length_bytes: int) -> Block:
        return Block(self, length_bytes)


class Streaming:
    """A pump over the file, and what its slots hold."""

    def __init__(self, path: Path, *, resident: int = 2, slots: int = 2, pinned: int = 0) -> None:
        self.gpu = WindowGpu()
        self.gpu.make_current()
        header = FILE.header
        self.plan = plan_window(header, 1 << 40, slots=slots, most_resident=resident)
        sizes = {group.name: group.length_bytes for group in header.groups}
        self.blocks = WindowBlocks(self.gpu, self.plan, sizes)
        self.placement = WindowPlacement(header, self.plan, self.blocks)
        self.source = LocalSource(path)
        self.reads = self.placement.streamed_reads(4096)
        self.stream = self.gpu.create_stream()
        self.pinned = PinnedCopies(self.gpu, self.source, pinned, piece_bytes=4096)
        self.pump = self.new_pump()

    def new_pump(self, **options: float) -> LayerPump:
        return LayerPump(
            self.gpu,
            self.source,
            self.reads,
            self.placement.origin_bytes,
            slots=self.plan.slots,
            stream=self.stream,
            pinned=self.pinned,
            options=PumpOptions(threads=3, **options),
        )

    def check(self, number: int) -> None:
        """Hold a layer's slot against the file."""
        name = self.plan.streamed[number]
        group = next(group for group in FILE.header.groups if group.name == name)
        held = self.gpu.bytes_of(self.blocks.slots[self.placement.slot_of(name)].address)
        expected = FILE.data[group.offset_bytes : group.offset_bytes + group.length_bytes]
        assert held[: group.length_bytes] == expected

    def close(self) -> None:
        self.pump.close()
        self.pinned.close()
        self.source.close()
        self.stream.destroy()
        assert not self.gpu.live


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(FILE.data)
    return path


@pytest.mark.parametrize("resident", [0, 2, 4])
@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("pinned", [0, 20_000, 1 << 30])
def test_each_pass_finds_every_layer_in_its_slot(path, resident, slots, pinned):
    streaming = Streaming(path, resident=resident or 1, slots=slots, pinned=pinned)
    streaming.pinned.begin(streaming.reads)
    if pinned > 1 << 20:
        streaming.pinned.wait()
    streaming.pump.start()
    for _ in range(5):
        for number in range(len(streaming.plan.streamed)):
            streaming.pump.wait_for(number)
            streaming.check(number)
            streaming.pump.release(number)
    streaming.pinned.wait()
    assert streaming.pinned.held_bytes <= pinned
    assert (streaming.pinned.num_layers > 0) == (pinned > 0)
    assert streaming.pump.passed_bytes == 5 * streaming.plan.streamed_bytes
    streaming.close()


def test_a_pass_that_broke_off_does_not_mix_layers_up(path):
    streaming = Streaming(path)
    streaming.pump.start()
    source = random.Random(2)
    for _ in range(30):
        for number in range(source.randrange(1, len(streaming.plan.streamed) + 1)):
            streaming.pump.wait_for(number)
            streaming.check(number)
            if source.random() < 0.9:
                streaming.pump.release(number)
            else:
                break
    streaming.close()


def test_a_slot_is_not_filled_before_its_layer_was_computed(path):
    streaming = Streaming(path)
    streaming.pump.start()
    for number in range(streaming.plan.slots):
        streaming.pump.wait_for(number)
        streaming.check(number)
        if number + 1 < streaming.plan.slots:
            streaming.pump.release(number)
    streaming.check(streaming.plan.slots - 1)
    streaming.pump._options = PumpOptions(stall_seconds=0.05)
    # Nobody released the last one: its slot is not to be had.
    with pytest.raises(StoreError, match="has not come"):
        streaming.pump._wait(2 * streaming.plan.slots - 1)
    streaming.check(streaming.plan.slots - 1)
    streaming.close()


@pytest.mark.parametrize("copy", [1, 5, 17])
def test_a_device_that_fails_is_told_by_whoever_computes(path, copy):
    streaming = Streaming(path)

    def fail(count: int) -> None:
        if count >= copy:
            raise DeviceLostError("the device is lost")

    streaming.gpu.on_copy = fail
    streaming.pump.start()
    with pytest.raises(DeviceLostError, match="lost"):
        passes(streaming)
    with pytest.raises(DeviceLostError, match="lost"):
        streaming.pump.wait_for(0)
    streaming.close()


def passes(streaming: Streaming) -> None:
    for _ in range(4):
        for number in range(len(streaming.plan.streamed)):
            streaming.pump.wait_for(number)
            streaming.pump.release(number)


def test_a_file_that_changes_stops_the_next_pass(path):
    streaming = Streaming(path)
    streaming.pump.start()
    passes(streaming)
    with path.open("r+b") as file:
        file.write(b"other")
    with pytest.raises(SourceChangedError, match="was written to"):
        passes(streaming)
    streaming.close()


def test_a_disk_that_stands_still_is_an_error_that_names_the_layer(path, monkeypatch):
    streaming = Streaming(path)
    held = threading.Event()
    monkeypatch.setattr(LocalSource, "read_into", lambda *_: held.wait(60))
    streaming.pump = streaming.new_pump(stall_seconds=0.05)
    streaming.pump.start()
    with pytest.raises(StoreError, match=r"layers\.\d+ of .*model.bin has not come"):
        streaming.pump.wait_for(0)
    held.set()
    streaming.close()


def test_copies_that_cannot_be_pinned_are_done_without(path, monkeypatch):
    streaming = Streaming(path, pinned=1 << 30)
    count = iter(range(100))

    def refuse(length: int) -> object:
        if next(count) > 2:
            raise DeviceLostError("the host cannot pin")
        return HostGpu.allocate_host(streaming.gpu, length)

    monkeypatch.setattr(streaming.gpu, "allocate_host", refuse)
    streaming.pinned.begin(streaming.reads)
    streaming.pinned.wait()
    monkeypatch.undo()
    streaming.pump.start()
    passes(streaming)
    streaming.close()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("zse-stream", "zse-pin"))]
