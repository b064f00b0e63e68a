"""What is left for another model, on a CPU and on a GPU, and what its load is told."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from zse.models.memory import CPU_RUNTIME_BYTES, GPU_RUNTIME_BYTES, MemoryEstimate
from zse.options import load_options
from zse.serve.admin import memory
from zse.serve.admin.memory import ModelMemoryError, Room, room_for_models
from zse.serve.models import ModelTable
from zse.server_options import ServeOptions
from zse.units import GIB

ESTIMATE = MemoryEstimate(
    quantization="int4",
    context_tokens=4096,
    stored_bytes=GIB,
    weights_bytes=GIB,
    kv_bytes=GIB // 4,
    overhead_bytes=CPU_RUNTIME_BYTES,
)


@pytest.fixture
def models():
    """A table with a model of 2 GiB."""
    engine = SimpleNamespace(memory_bytes=lambda: {"weights": GIB, "kv_cache": GIB})
    table = ModelTable()
    table.put(SimpleNamespace(name="a", engine=engine, details={}))
    return table


@pytest.fixture
def gpu(monkeypatch):
    """A GPU with 70 of 80 GiB free."""
    info = SimpleNamespace(ordinal=1, free_bytes=70 * GIB)
    free = {"cuda:1": lambda: info.free_bytes}
    monkeypatch.setattr(memory, "free_gpu_bytes", lambda device: free[device]())
    return info


def options(**load):
    return ServeOptions(load=load_options(**load))


def test_on_a_gpu_a_limit_leaves_what_the_loaded_models_do_not_hold(models, gpu):
    room = room_for_models(options(device="cuda:1", vram_gib=10.0), models)
    assert room.on_gpu
    assert room.used_bytes == 2 * GIB + GPU_RUNTIME_BYTES
    assert room.left_bytes == 8 * GIB - GPU_RUNTIME_BYTES
    load = room.options_within(load_options(device="cuda:1", vram_gib=10.0), ESTIMATE)
    assert load.device.vram_bytes == room.left_bytes


def test_what_is_free_on_the_card_bounds_every_limit(models, gpu):
    gpu.free_bytes = 3 * GIB
    assert room_for_models(options(device="cuda:1", vram_gib=10.0), models).left_bytes == 3 * GIB
    room = room_for_models(options(device="cuda:1"), models)
    assert (room.limit_bytes, room.left_bytes) == (0, 3 * GIB)
    plain = load_options(device="cuda:1")
    assert room.options_within(plain, ESTIMATE) is plain


def test_on_a_cpu_weights_and_keys_count(models):
    room = room_for_models(replace(options(device="cpu"), models_gib=4.0), models)
    assert not room.on_gpu
    assert room.used_bytes == 2 * GIB
    assert room.left_bytes <= 4 * GIB - room.used_bytes


def room_of(left_gib, **fields):
    values = {"limit_bytes": 8 * GIB, "used_bytes": 0, "on_gpu": False, **fields}
    return Room(left_bytes=int(left_gib * GIB), **values)


def test_a_model_fits_to_the_byte_and_the_refusal_says_both_numbers():
    assert room_of(1.25).holds(ESTIMATE)
    assert not room_of(1.2499).holds(ESTIMATE)
    with pytest.raises(ModelMemoryError, match=r"needs about 1\.2 GiB; 1\.0 GiB are left"):
        room_of(1.0).check(ESTIMATE)
    assert not room_of(1.25, on_gpu=True).holds(ESTIMATE)  # whose runtime is its own


def test_within_a_limit_the_cache_holds_four_sequences_or_what_is_spare():
    plain = load_options(device="cpu")
    assert room_of(8).options_within(plain, ESTIMATE).cache.kv_gib == 1.0
    assert room_of(1.5).options_within(plain, ESTIMATE).cache.kv_gib == pytest.approx(0.5)
    given = load_options(device="cpu", kv_gib=0.1)
    assert room_of(8).options_within(given, ESTIMATE) is given
    assert room_of(8, limit_bytes=0).options_within(plain, ESTIMATE) is plain
