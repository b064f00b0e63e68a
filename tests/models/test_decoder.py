"""The program: which operations a model calls, seen by a recorder in place of a backend."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zse.backends.binding import bind_layer
from zse.models.decoder import run_layers
from zse.models.uniform import TensorNames, UniformDecoder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from zse.backends.handles import LayerWeights
    from zse.models.layer_spec import LayerSpec, LinearSpec, NormSpec
    from zse.models.weights import WeightSpec


class Recorder:
    """Notes every call; its tensors are the names of the operations that made them.

    The handles of a layer are the names of its weights.
    """

    ends = SimpleNamespace(embedding="embed.weight")

    def __init__(self, computed: Collection[int] = ()) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._is_computed = (number in computed for number in itertools.count())

    def is_computed(self, step: str) -> bool:
        assert step == "step"
        return next(self._is_computed)

    @contextmanager
    def layer(self, layer: LayerSpec) -> Iterator[LayerWeights]:
        self.calls.append(("layer", (layer.index,)))
        yield bind_layer(layer, self)
        self.calls.append(("end", (layer.index,)))

    def linear(self, spec: LinearSpec) -> str:
        return spec.weight.name

    def norm(self, spec: NormSpec) -> str:
        return spec.weight.name

    def vector(self, spec: WeightSpec) -> str:
        return spec.name

    def __getattr__(self, name: str) -> Any:
        def call(step: str, *arguments: Any) -> str:
            assert step == "step"
            self.calls.append((name, arguments))
            return name

        return call


def calls_of(
    *, computed: Collection[int] = (), **changes: Any
) -> list[tuple[str, tuple[Any, ...]]]:
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
    recorder = Recorder(computed)
    spec = numbers.spec(TensorNames())
    assert run_layers(recorder, spec, "step") == "linear_residual"
    return recorder.calls


def test_every_layer_is_six_operations_within_its_scope() -> None:
    operations = [
        "layer",
        "norm_linear",
        "rope_store",
        "attention",
        "linear_residual",
        "gate_up",
        "linear_residual",
        "end",
    ]
    calls = calls_of()
    assert [name for name, _ in calls] == ["embed", *operations, *operations]
    read = {argument for _, arguments in calls for argument in arguments if ".1." in str(argument)}
    leaves = ("attn_norm", "qkv", "o", "mlp_norm", "gate_up", "down")
    assert {f"layers.1.{leaf}.weight" for leaf in leaves} <= read


def test_scales_and_windows_are_those_of_the_spec() -> None:
    calls = calls_of(embedding_scale=3.0, residual_scale=0.5, sliding_window=3, sliding_layers=(1,))
    assert calls[0] == ("embed", ("embed.weight", 3.0))
    attentions = [arguments[1] for name, arguments in calls if name == "attention"]
    assert [attention.window for attention in attentions] == [None, 3]
    scales = [arguments[3] for name, arguments in calls if name == "linear_residual"]
    assert scales == [0.5] * 4


def test_a_layer_that_was_computed_with_others_like_it_is_not_entered() -> None:
    every, calls = calls_of(), calls_of(computed=[0])
    after = every[every.index(("layer", (1,))) :]
    assert [name for name, _ in calls] == ["embed", *(name for name, _ in after)]
    assert ("layer", (0,)) not in calls
