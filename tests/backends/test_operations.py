"""What no backend computes is refused by name, before any weight moves; handles follow the spec."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from zse.backends.binding import bind_layer
from zse.backends.cpu.supported import check_supported as check_for_cpu
from zse.backends.gpu.supported import check_supported as check_for_gpu
from zse.errors import UnsupportedModelError
from zse.models.layer_spec import ExpertsSpec, LinearAttentionSpec
from zse.models.rope import RoPESpec
from zse.models.uniform import TensorNames, UniformDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.models.layer_spec import LayerSpec, LinearSpec, NormSpec
    from zse.models.spec import ModelSpec
    from zse.models.weights import WeightSpec

SPEC = UniformDecoder(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    qkv_bias=True,
    qk_norm=True,
).spec(TensorNames())
SECOND = SPEC.layers[1]
PARTIAL = RoPESpec(theta=10000.0, rotary_dim=8)


def with_layer(**changes: Any) -> ModelSpec:
    """Return the model with another second layer."""
    layer = replace(SECOND, **changes)
    return replace(SPEC, layers=(SPEC.layers[0], layer, SPEC.layers[2]))


def with_attention(**changes: Any) -> ModelSpec:
    return with_layer(mixer=replace(SECOND.mixer, **changes))


def experts(layer: LayerSpec) -> ExpertsSpec:
    assert layer.mlp is not None
    return ExpertsSpec(
        num_experts=4, experts_per_token=2, norm=None, router=layer.mlp.up, expert=layer.mlp
    )


def linear_attention(layer: LayerSpec) -> LinearAttentionSpec:
    assert layer.mixer_norm is not None
    weight = layer.mixer_norm.weight
    linear = layer.mixer.output
    return LinearAttentionSpec(
        num_key_heads=2,
        num_value_heads=2,
        key_dim=16,
        value_dim=16,
        convolution_width=4,
        inputs=linear,
        gates=linear,
        convolution=weight,
        decay=weight,
        step_bias=weight,
        norm=layer.mixer_norm,
        output=linear,
    )


HEADS = "vectors in place of logits|of its states to pool|attention that does not fit its head"


@pytest.mark.parametrize("check", [check_for_cpu, check_for_gpu])
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            with_layer(
                mixer=replace(
                    linear_attention(SECOND), convolution_width=9, key_dim=64, value_dim=64
                )
            ),
            "convolution over 9 tokens",
        ),
        (replace(SPEC, head=replace(SPEC.head, weight=None)), HEADS),
        (replace(SPEC, head=replace(SPEC.head, pooling="mean")), HEADS),
    ],
)
def test_what_no_backend_computes_is_refused_by_layer_and_name(
    check: Callable[[ModelSpec], None], spec: ModelSpec, message: str
) -> None:
    check(SPEC)
    with pytest.raises(UnsupportedModelError, match=message):
        check(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (with_layer(mixer=linear_attention(SECOND)), "linear attention with keys of 16"),
        (
            with_layer(experts=experts(SECOND)),
            "layer 1 .*a dense MLP beside experts without a norm",
        ),
        (with_attention(k_norm=None), "layer 1 .*norms of heads"),
        (with_attention(q_norm=replace(SECOND.mixer.q_norm, kind="layer")), "norms of heads"),
        (with_layer(mlp_post_norm=replace(SECOND.mlp_norm, kind="layer")), "layer 1 .*a LayerNorm"),
    ],
)
def test_what_a_gpu_does_not_compute_a_cpu_does(spec: ModelSpec, message: str) -> None:
    check_for_cpu(spec)
    with pytest.raises(UnsupportedModelError, match=message):
        check_for_gpu(spec)


@pytest.mark.parametrize("check", [check_for_cpu, check_for_gpu])
@pytest.mark.parametrize(
    "spec",
    [
        with_attention(rope=None),
        with_attention(rope=PARTIAL),
        with_attention(num_heads=8),
        with_attention(softcap=50.0, sinks=SECOND.mixer_norm.weight),
        with_attention(kv_of_layer=0, k_norm=None),
        with_layer(mixer_norm=None, mlp_norm=None),
        with_layer(mixer_post_norm=SECOND.mlp_norm, stream_scale=SECOND.mlp_norm.weight),
        replace(SPEC, head=replace(SPEC.head, softcap=30.0)),
    ],
)
def test_layers_of_other_kinds_are_computed(
    check: Callable[[ModelSpec], None], spec: ModelSpec
) -> None:
    check(spec)


@pytest.mark.parametrize("check", [check_for_cpu, check_for_gpu])
@pytest.mark.parametrize("changes", [{"kv_of_layer": 7}, {"kv_of_layer": 0, "num_kv_heads": 1}])
def test_keys_of_a_layer_that_has_none_such_are_refused(
    check: Callable[[ModelSpec], None], changes: dict[str, int]
) -> None:
    with pytest.raises(UnsupportedModelError, match=r"layer 1 .*which has none such"):
        check(with_attention(**changes))


def test_layers_may_turn_and_see_differently() -> None:
    other = RoPESpec(theta=500.0, rotary_dim=16)
    for check in (check_for_cpu, check_for_gpu):
        check(with_attention(rope=other, window=4, scale=0.5))


class Names:
    """Binds everything to its name in the file."""

    def linear(self, spec: LinearSpec) -> tuple[str, str | None]:
        return spec.weight.name, spec.bias and spec.bias.name

    def norm(self, spec: NormSpec) -> str:
        return spec.weight.name

    def vector(self, spec: WeightSpec) -> str:
        return spec.name


def test_handles_have_the_names_of_the_spec() -> None:
    weights = bind_layer(SECOND, Names())
    assert weights.qkv == ("layers.1.qkv.weight", "layers.1.qkv.bias")
    assert weights.output == ("layers.1.o.weight", None)
    assert weights.up == ("layers.1.gate_up.weight", None)
    assert weights.down == ("layers.1.down.weight", None)
    norms = (weights.mixer_norm, weights.q_norm, weights.k_norm, weights.mlp_norm)
    assert norms == tuple(
        f"layers.1.{n}.weight" for n in ("attn_norm", "q_norm", "k_norm", "mlp_norm")
    )
    assert (weights.mixer_post_norm, weights.mlp_post_norm) == (None, None)
