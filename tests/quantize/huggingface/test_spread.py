"""Models of transformers over several devices: who gets what, and the same logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zse.errors import UsageError
from zse.quantize.huggingface.load import load_zse_model
from zse.quantize.huggingface.spread import devices_of

PROMPT = torch.tensor([[3, 17, 95, 4, 60]])


@pytest.fixture(scope="module")
def tiny() -> Any:
    return load_zse_model("tiny", device="cpu")[0]


def test_a_model_that_is_mapped_to_devices_gives_the_same_logits(tiny: Any) -> None:
    with torch.inference_mode():
        expected = tiny(PROMPT).logits
        for device_map in ("auto", {"": "cpu"}):
            mapped, _, _ = load_zse_model("tiny", device_map=device_map, max_memory={"cpu": "4GiB"})
            assert mapped.hf_device_map
            assert torch.equal(mapped(PROMPT).logits, expected)


def bytes_of(module: Any) -> int:
    tensors = [*module.parameters(), *module.buffers()]
    return sum({one.data_ptr(): one.nbytes for one in tensors}.values())


def test_a_layer_lies_on_one_device_and_no_device_takes_more_than_it_may(tiny: Any) -> None:
    whole = bytes_of(tiny)
    limits = {0: int(0.7 * whole), 1: int(0.7 * whole), "cpu": whole}
    found = devices_of(tiny, "sequential", limits)
    assert {0, 1} <= set(found.values())
    layers = [name for name in found if ".layers." in name]
    assert layers
    assert all(name.count(".") == 2 for name in layers)
    taken = dict.fromkeys(limits, 0)
    for name, device in found.items():
        taken[device] += bytes_of(tiny.get_submodule(name))
    assert all(taken[device] <= limits[device] for device in limits)


def test_what_fits_nowhere_is_refused(tiny: Any) -> None:
    with pytest.raises(UsageError, match="fit into no device's memory"):
        devices_of(tiny, "sequential", {"cpu": 1000})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device_map": "best"}, "device_map is 'best'"),
        ({"device_map": {"lm_head": "cpu"}}, "leaves a part out"),
        ({"max_memory": {0: "1GiB"}}, "without device_map"),
        ({"device_map": "auto", "device": "cpu"}, "beside a device"),
        ({"device_map": "auto", "backend": "bnb"}, "for bnb"),
    ],
)
def test_maps_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_zse_model("tiny", **options)


@pytest.mark.gpu
def test_two_gpus_give_the_logits_of_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    alone, _, _ = load_zse_model("tiny", device="cuda")
    both, _, _ = load_zse_model("tiny", device_map="balanced")
    assert set(both.hf_device_map.values()) == {0, 1}
    assert torch.cuda.current_device() == 0
    with torch.inference_mode():
        found, expected = both(PROMPT.cuda()).logits, alone(PROMPT.cuda()).logits
    assert float((found.cpu() - expected.cpu()).abs().max() / expected.abs().max()) < 1e-2
