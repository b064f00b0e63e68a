"""Models larger than the device from Python: modules whose layers move, and files."""

from __future__ import annotations

import gc
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from random_files import write_random_file

from zse.core.zstream import (
    AsyncPrefetcher,
    LayerStreamer,
    MemoryPressure,
    MemoryTracker,
    OffloadManager,
    StreamingModel,
    ZSEStreamLoader,
)
from zse.core.zstream.streaming_model import find_layers
from zse.errors import StoreError, UsageError
from zse.format import ZSEReader

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
SIZES = {"vocab_size": 60, "max_position_embeddings": 64}


def llama() -> torch.nn.Module:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, **SIZES,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def gpt2() -> torch.nn.Module:
    torch.manual_seed(4)
    config = transformers.GPT2Config(n_embd=32, n_layer=5, n_head=4, n_positions=64, vocab_size=60)
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize(("window", "ahead"), [(1, 0), (2, 2), (4, 2), (99, 3)])
def test_a_module_generates_what_it_generated_before_and_is_itself_again(make, window, ahead):
    model = make()
    ids = torch.tensor([[5, 17, 40, 3]])
    options = {"do_sample": False, "max_new_tokens": 6, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count = len(find_layers(model))
    with StreamingModel(model, gpu_layers=window, prefetch_layers=ahead, device="cpu") as streaming:
        found = streaming.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
        assert found.tolist() == expected.tolist()
        stats = streaming.stats()
        assert stats.resident_layers == min(window, count)
        assert (stats.evictions > 0) == (window < count)
        assert torch.equal(streaming(ids).logits, model(ids).logits)
        assert streaming.model is model
    assert model.generate(ids, **options).tolist() == expected.tolist()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(layer._forward_pre_hooks for layer in find_layers(model))


def test_layers_that_lie_in_files_are_the_same_and_files_go(tmp_path):
    model, ids = llama(), torch.tensor([[9, 2]])
    expected = model(ids).logits
    offload = OffloadManager(90_000, folder=tmp_path)
    with StreamingModel(model, 2, 1, device="cpu", offload=offload) as streaming:
        assert {offload.tier(f"layers.{index}") for index in range(6)} == {"cpu", "disk"}
        assert offload.cpu_bytes <= 90_000
        assert offload.disk_bytes > 0
        assert torch.equal(streaming(ids).logits, expected)
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o077 == 0
    offload.close()
    assert list(tmp_path.iterdir()) == []


def test_a_streamer_that_made_its_own_files_leaves_a_module_that_works(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    weights = [layer.weight.detach().clone() for layer in layers]
    streamer = LayerStreamer(layers, 1, 0, device="cpu")
    for index in range(3):
        streamer.acquire(index)
    streamer.close()
    gc.collect()
    assert all(torch.equal(layer.weight, one) for layer, one in zip(layers, weights, strict=True))


def test_the_window_keeps_what_was_used_last_whatever_threads_ask():
    layers = [torch.nn.Linear(4, 4) for _ in range(9)]
    streamer = LayerStreamer(layers, 3, 1, device="cpu")
    source = random.Random(5)
    used: list[int] = []
    for _ in range(60):
        index = source.randrange(9)
        assert streamer.acquire(index) is layers[index]
        used = [one for one in used if one != index] + [index]
        assert streamer.resident == used[-3:]
    streamer.resize(1)
    assert streamer.resident == used[-1:]

    def ask(seed: int) -> None:
        own = random.Random(seed)
        for _ in range(50):
            streamer.acquire(own.randrange(9))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = streamer.stats()
    assert stats.hits + stats.misses == 60 + 200
    assert stats.resident_layers == 1
    streamer.close()


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("sequential", [2, 3]), ("adaptive", [4, 2]), ("attention", [3, 2])],
)
def test_what_is_brought_next_follows_the_strategy(strategy, expected, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("zse.core.zstream.prefetcher.perf_counter", lambda: now[0])

    def fetch(index: int) -> dict[str, torch.Tensor]:
        now[0] += 1.0 if index == 3 else 0.01
        return {"weight": torch.full((4,), float(index))}

    prefetcher = AsyncPrefetcher(fetch, 5, device=CPU, strategy=strategy)
    for index in (1, 4, 1, 4, 3, 2):
        assert float(prefetcher.take(index)["weight"][0]) == index
    assert prefetcher.guess(1, 2) == expected
    prefetcher.prefetch(2)
    assert prefetcher.coming() == [2]
    assert float(prefetcher.take(2)["weight"][0]) == 2
    assert prefetcher.bytes_per_second > 0
    prefetcher.close()


def test_pressure_makes_the_window_smaller_between_passes():
    model, ids = llama(), torch.tensor([[9, 2]])
    with StreamingModel(model, 4, 1, device="cpu") as streaming:
        tracker = streaming._module.tracker
        expected = streaming(ids).logits
        tracker._read = lambda: (0, 100)
        tracker._clock = lambda: 1e12
        assert torch.equal(streaming(ids).logits, expected)
        assert tracker.pressure is MemoryPressure.OOM
        assert streaming._module.streamer.window == 2


def test_the_tracker_knows_this_machine():
    tracker = MemoryTracker("cpu")
    state = tracker.update()
    assert 0 < state.free_bytes <= state.total_bytes
    assert tracker.optimal_window([1] * 7) == 7


def test_what_cannot_be_streamed_is_said():
    with pytest.raises(UsageError, match="no stack of layers"):
        StreamingModel(torch.nn.Linear(3, 3), device="cpu")
    with pytest.raises(UsageError, match="gpu_layers is -1"):
        StreamingModel(llama(), gpu_layers=-1)
    with pytest.raises(UsageError, match="takes no vram_gib"):
        StreamingModel(llama(), vram_gib=3)
    with pytest.raises(UsageError, match="no layers to stream"):
        LayerStreamer([], device="cpu")
    with pytest.raises(UsageError, match="strategy is 'random'"):
        AsyncPrefetcher(lambda _: {}, 3, device=CPU, strategy="random")


def test_a_folder_without_room_is_an_error_that_names_it(tmp_path, monkeypatch):
    offload = OffloadManager(0, folder=tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.open", full)
    with pytest.raises(StoreError, match="No space left"):
        offload.keep("layers.0", {"weight": torch.zeros(9)})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "model.zse"
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_heads": 4, "num_kv_heads": 2}
    write_random_file(path, "int8", num_layers=6, head_dim=32, vocab_size=90, **sizes)
    return path


def test_a_file_is_read_layer_by_layer_with_the_numbers_of_the_reader(file):
    with ZSEReader(file) as reader, ZSEStreamLoader(file, prefetch_layers=1) as loader:
        names = [entry.name for entry in reader.header.loaded().tensors]
        expected = {name: reader.tensor(name) for name in names}
        found: dict[str, torch.Tensor] = loader.load_rest()
        for index, tensors in loader.layers():
            assert all(name.startswith(f"layers.{index}.") for name in tensors)
            found |= tensors
        assert loader.num_layers == 6
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        with pytest.raises(UsageError, match="layer 6 was asked for"):
            loader.load_layer(6)


def test_a_file_generates_in_less_memory_than_it_takes():
    with StreamingModel("tiny", gpu_layers=0, device="cpu", ram_gib=1.0) as streaming:
        (first,) = streaming.generate("One two", max_new_tokens=5, temperature=0.0)
        assert len(first.outputs[0].token_ids) == 5
        with pytest.raises(UsageError, match="no forward"):
            streaming(1)
