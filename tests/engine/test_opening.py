"""A model that is opened for a GPU gives everything back when nothing comes of it."""

import pytest
import stub_libcuda

from zse.device.cuda import Driver, Gpu
from zse.engine.loading import load_model
from zse.engine.opening import LoadOptions, open_model
from zse.errors import DeviceError, FormatError
from zse.models import runner
from zse.quantize.builtin import ensure_zse

OPTIONS = LoadOptions(device="cuda")


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model, and a GPU with 4 GiB in the shape of the stub driver."""
    monkeypatch.setenv("ZSE_STUB_TOTAL", str(4 << 30))
    path = str(stub_libcuda.build())
    real_open = Gpu.open
    monkeypatch.setattr(Gpu, "open", lambda ordinal: real_open(ordinal, driver=Driver(path)))
    return ensure_zse("tiny", cache_dir=tmp_path)


def free_bytes() -> int:
    with Gpu.open(0) as gpu:
        return gpu.memory()[0]


def test_weights_that_nobody_waits_for_are_given_back(model):
    before = free_bytes()
    opened = open_model(model, OPTIONS)
    assert opened.arrival.gpu.memory()[0] < before
    opened.abandon()
    opened.arrival.abandon()
    assert free_bytes() == before


def test_an_error_before_the_backend_gives_the_weights_back(model, monkeypatch):
    before = free_bytes()

    def refuse(reader, config):
        raise FormatError("tensor layers.0.up.weight is missing")

    monkeypatch.setattr(runner, "_check_tensors", refuse)
    with pytest.raises(FormatError, match="missing"):
        load_model(model, OPTIONS)
    assert free_bytes() == before


def test_a_model_that_the_allowed_memory_does_not_hold_is_refused_before_it_is_sent(model):
    before = free_bytes()
    with pytest.raises(DeviceError, match=r"0\.10 GiB are allowed"):
        open_model(model, LoadOptions(device="cuda", vram_gib=0.1))
    assert free_bytes() == before
