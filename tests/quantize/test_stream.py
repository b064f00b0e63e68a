"""Tensors go through quantization side by side, and into the file one after another."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from zse.errors import ConversionError
from zse.models.storage import Storage
from zse.quantize import stream
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.choice import SchemeChoice
from zse.quantize.stream import TensorStream, Work
from zse.quantize.ways import Plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

SECONDS = 60
"""Until a state that must come is taken to be missing."""


@pytest.fixture
def checkpoint(llama_folder: Path) -> Iterator[Checkpoint]:
    with Checkpoint(llama_folder) as opened:
        yield opened


def works(checkpoint: Checkpoint) -> list[Work]:
    groups = SchemeChoice(Storage(quantization="int8"), checkpoint).groups()
    return [
        Work(weight=weight, planned=planned) for _, items in groups for weight, planned in items
    ]


class Recorded:
    """A writer that keeps names, and may hold its caller up."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str, int]] = []
        self.may_go_on = Event()
        self.may_go_on.set()

    def write_part(self, name: str, role: str, _data: Any, *, row_offset: int = 0) -> None:
        assert self.may_go_on.wait(SECONDS)
        self.written.append((name, role, row_offset))


def test_the_next_tensor_is_read_while_one_is_written(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = works(checkpoint)
    writer, read = Recorded(), stream.read_rows
    writer.may_go_on.clear()

    def seen(opened: Checkpoint, weight: Any, *rest: Any) -> Any:
        if weight is second.weight:
            writer.may_go_on.set()
        return read(opened, weight, *rest)

    monkeypatch.setattr(stream, "read_rows", seen)
    with TensorStream(checkpoint, writer, lambda _: None, num_workers=2) as moving:  # type: ignore[arg-type]
        moving.write([first, second])
    assert [name for name, *_ in writer.written if name == second.weight.name]


def test_no_more_chunks_are_on_their_way_than_workers_have_use_for(
    checkpoint: Checkpoint,
) -> None:
    all_of_them, taken = works(checkpoint), []
    writer, before_first = Recorded(), []

    def taking() -> Iterator[Work]:
        for one in all_of_them:
            taken.append(one)
            yield one

    def count(_bytes: int) -> None:
        before_first.append(len(taken))

    with TensorStream(checkpoint, writer, count, num_workers=2) as moving:  # type: ignore[arg-type]
        moving.write(taking())
    assert before_first[0] <= 2 * 2 + 1 < len(all_of_them)
    assert len(taken) == len(all_of_them)


@pytest.mark.parametrize("elements", [128, 128 * 7, 1 << 20])
def test_scales_follow_the_last_row_of_their_tensor(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    monkeypatch.setattr(stream, "QUANTIZED_CHUNK_ELEMENTS", elements)
    monkeypatch.setattr(stream, "PLAIN_CHUNK_ELEMENTS", elements)
    writer, wanted = Recorded(), works(checkpoint)
    with TensorStream(checkpoint, writer, lambda _: None) as moving:  # type: ignore[arg-type]
        moving.write(wanted)
    parts = list(dict.fromkeys((name, role) for name, role, _ in writer.written))
    expected = [
        (one.weight.name, role)
        for one in wanted
        for role in (("data",) if one.planned.scheme.is_plain else ("qweight", "scale"))
    ]
    assert parts == expected
    offsets = [row for name, role, row in writer.written if role != "scale"]
    assert [row for row in offsets if row == 0] == [0] * len(wanted)


def test_what_was_on_its_way_behind_a_failure_is_left(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, wanted, read = Recorded(), works(checkpoint), stream.read_rows

    def failing(opened: Checkpoint, weight: Any, *rest: Any) -> Any:
        if weight is wanted[1].weight:
            raise ConversionError("not finite")
        return read(opened, weight, *rest)

    monkeypatch.setattr(stream, "read_rows", failing)
    with (
        pytest.raises(ConversionError, match="not finite"),
        TensorStream(checkpoint, writer, lambda _: None, num_workers=1) as moving,  # type: ignore[arg-type]
    ):
        moving.write(wanted)
    assert {name for name, *_ in writer.written} <= {wanted[0].weight.name}


def test_rows_are_read_into_memory_of_the_way_that_they_go(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Way(Plain):
        def memory(self, length_bytes: int) -> torch.Tensor:
            asked.append(length_bytes)
            return super().memory(length_bytes)

    some = [work for work in works(checkpoint) if not work.planned.scheme.is_plain]
    monkeypatch.setattr(stream, "Plain", Way)
    with TensorStream(checkpoint, Recorded(), lambda _: None, num_workers=1) as moving:  # type: ignore[arg-type]
        moving.write(some)
    assert sum(asked) == sum(
        checkpoint.length_bytes(piece) for work in some for piece in work.weight.pieces()
    )
