"""Programs: which operations a family calls, seen by a recorder in place of a backend."""

from __future__ import annotations

from typing import Any

import pytest

from zse.errors import UnsupportedModelError
from zse.models.config import ModelConfig
from zse.models.program import PROGRAMS, program_for


class Recorder:
    """Notes every call; its tensors are the names of the operations that made them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(step: str, *arguments: Any) -> str:
            assert step == "step"
            self.calls.append((name, arguments))
            return name

        return call


def calls_of(family: str, **changes: Any) -> list[tuple[str, tuple[Any, ...]]]:
    config = ModelConfig(
        family=family,
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        rms_norm_eps=1e-5,
        rope_theta=1.0,
        **changes,
    )
    recorder = Recorder()
    assert program_for(family)(recorder, config, "step") == "linear_residual"
    return recorder.calls


@pytest.mark.parametrize("family", list(PROGRAMS))
def test_every_layer_is_six_operations(family: str) -> None:
    layer = [
        "norm_linear",
        "rope_store",
        "attention",
        "linear_residual",
        "gate_up",
        "linear_residual",
    ]
    assert [name for name, _ in calls_of(family)] == ["embed", *layer, *layer]


def test_families_differ_in_bias_head_norms_and_window() -> None:
    windowed = {"sliding_window": 3, "sliding_layers": (1,)}
    for family in PROGRAMS:
        calls = calls_of(family, **windowed)
        norm_linear = [arguments for name, arguments in calls if name == "norm_linear"]
        rope = [arguments for name, arguments in calls if name == "rope_store"]
        windows = [arguments[-1] for name, arguments in calls if name == "attention"]
        assert ("layers.0.qkv.bias" in norm_linear[0]) == (family == "qwen2")
        assert ("layers.1.k_norm.weight" in rope[1]) == (family == "qwen3")
        assert windows == ([None, None] if family == "llama" else [None, 3])


def test_unknown_family_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="'gpt2'"):
        program_for("gpt2")
