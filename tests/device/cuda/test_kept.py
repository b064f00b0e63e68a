"""Code that stays on a GPU, on the stub driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from stub_libcuda import Stub, image

from zse.device.cuda import kept
from zse.device.cuda.gpu import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

CODE = image("add=8,4")


@pytest.fixture
def keeping(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept, "_keeping", kept._Keeping())
    kept.keep_code()
    yield
    kept.drop_code()


def launched(gpu: Gpu) -> int:
    """Load the code and run it; return the driver's number for it."""
    module = gpu.load_module(CODE)
    module.kernel("add", ["*u8", "i32"], num_threads=32).launch(
        (1, 1, 1), gpu.create_stream(), 0, 1
    )
    return module.handle


def test_the_next_model_finds_the_code_of_the_one_that_left(keeping: None, stub: Stub) -> None:
    with Gpu.open(driver=stub.driver()) as gpu:
        first = launched(gpu)
    with Gpu.open(driver=stub.driver()) as gpu:
        assert launched(gpu) == first
        assert gpu.load_module(image("add=8,4", "more=8")).handle != first
    assert len(stub.launches()) == 2


def test_what_is_kept_is_given_back_in_the_end(keeping: None, stub: Stub) -> None:
    with Gpu.open(driver=stub.driver()) as gpu:
        launched(gpu)
    assert stub.live() > 0
    kept.drop_code()
    assert stub.live() == 0
    with Gpu.open(driver=stub.driver()) as gpu:
        launched(gpu)


def test_buffers_of_loads_are_one_place_that_outlives_a_gpu(keeping: None, stub: Stub) -> None:
    with Gpu.open(driver=stub.driver()) as gpu:
        first = gpu.copy_functions().kept
    with Gpu.open(driver=stub.driver()) as gpu:
        assert gpu.copy_functions().kept == first != 0
    kept.drop_code()
    assert stub.live() == 0


def test_nothing_is_kept_where_nobody_wants_it(stub: Stub) -> None:
    with Gpu.open(driver=stub.driver()) as gpu:
        launched(gpu)
        assert gpu.copy_functions().kept == 0
    assert stub.live() == 0
