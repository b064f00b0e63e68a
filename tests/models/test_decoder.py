"""The program: which operations a model calls, seen by a recorder in place of a backend."""

from __future__ import annotations

from typing import Any

from zse.models.decoder import run_layers
from zse.models.uniform import TensorNames, UniformDecoder


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


def calls_of(**changes: Any) -> list[tuple[str, tuple[Any, ...]]]:
    numbers = UniformDecoder(
        family="llama",
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
    spec = numbers.spec(TensorNames())
    assert run_layers(recorder, spec, "step") == "linear_residual"
    return recorder.calls


def test_every_layer_is_six_operations() -> None:
    layer = [
        "norm_linear",
        "rope_store",
        "attention",
        "linear_residual",
        "gate_up",
        "linear_residual",
    ]
    assert [name for name, _ in calls_of()] == ["embed", *layer, *layer]


def test_bias_head_norms_and_window_are_passed_where_the_spec_has_them() -> None:
    windowed = {"sliding_window": 3, "sliding_layers": (1,)}
    for has in (False, True):
        calls = calls_of(qkv_bias=has, qk_norm=has, **(windowed if has else {}))
        norm_linear = [arguments for name, arguments in calls if name == "norm_linear"]
        rope = [arguments for name, arguments in calls if name == "rope_store"]
        windows = [arguments[-1] for name, arguments in calls if name == "attention"]
        assert ("layers.0.qkv.bias" in norm_linear[0]) == has
        assert ("layers.1.k_norm.weight" in rope[1]) == has
        assert windows == ([None, 3] if has else [None, None])
