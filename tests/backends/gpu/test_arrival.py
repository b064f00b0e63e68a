"""Which models stream: those that leave no room for the rest, unless they are told otherwise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zse.backends.gpu.arrival import may_stream
from zse.errors import UsageError
from zse.options import load_options
from zse.units import GIB


def decide(weights_gib: float, *, free_gib: float, vram_gib: float = 0, stream="auto", kind="file"):
    gpu = SimpleNamespace(memory=lambda: (int(free_gib * GIB), int(free_gib * GIB)))
    source = SimpleNamespace(kind="http" if kind == "http" else "page cache", name="big.zse")
    options = load_options(stream=stream, vram_gib=vram_gib)
    return may_stream(
        gpu, source, int(weights_gib * GIB), options.device.vram_bytes, options.stream
    )


@pytest.mark.parametrize(
    ("weights", "free", "vram", "expected"),
    [
        (4.0, 24.0, 0, False),
        (40.0, 24.0, 0, True),
        (22.5, 24.0, 0, True),  # 1 GiB is no room for scratch memory and a cache
        (21.0, 24.0, 0, False),
        (40.0, 140.0, 0, False),
        (40.0, 140.0, 24, True),
    ],
)
def test_a_model_streams_where_its_weights_leave_no_room(weights, free, vram, expected):
    assert decide(weights, free_gib=free, vram_gib=vram) is expected


def test_streaming_can_be_told_to_be_on_or_off():
    assert decide(1.0, free_gib=24.0, stream="on")
    assert not decide(40.0, free_gib=24.0, stream="off")


def test_a_model_behind_an_address_never_streams():
    assert not decide(40.0, free_gib=24.0, kind="http")
    with pytest.raises(UsageError, match="every step would read it"):
        decide(40.0, free_gib=24.0, kind="http", stream="on")
