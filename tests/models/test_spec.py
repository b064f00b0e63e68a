"""Weights of a spec: those that the checkpoint has, in the order of execution."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from family_shapes import ENCODERS, shape_of
from model_pairs import CONFIG_CLASSES

from zse.models.families import all_families, read_checkpoint
from zse.models.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    LayerSpec,
    LinearAttentionSpec,
    LinearSpec,
    MLPSpec,
    NormSpec,
)
from zse.models.rope import RoPESpec
from zse.models.spec import ModelSpec, weights_of
from zse.models.storage import Storage
from zse.models.weights import Shard, Source, WeightKind, WeightSpec

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ARCHITECTURES = {name: family.ARCHITECTURES[0] for name, family in all_families().items()}


def make_spec(family: str, **overrides: object) -> ModelSpec:
    values = {**SMALL, "architectures": [ARCHITECTURES[family]], "model_type": family}
    return read_checkpoint(values | overrides)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", sorted(set(ARCHITECTURES) - ENCODERS))
def test_plan_reads_exactly_the_tensors_that_transformers_saves(
    family: str, tied: bool, tmp_path: Path
) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    transformers = pytest.importorskip("transformers")
    theirs = CONFIG_CLASSES[family](**shape_of(family, tie_word_embeddings=tied))
    transformers.AutoModelForCausalLM.from_config(theirs).save_pretrained(tmp_path)
    saved = safetensors.load_file(tmp_path / "model.safetensors")
    expected = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    spec = read_checkpoint(theirs.to_dict() | {"architectures": [ARCHITECTURES[family]]})
    found = {piece.name: piece.shape for weight in spec.weights() for piece in weight.pieces()}
    assert found == expected


def test_groups_stand_in_execution_order() -> None:
    names = [group.name for group in make_spec("llama").groups()]
    assert names == ["embed", "layers.0", "layers.1", "final"]


def test_joined_shape_is_the_sum_of_its_rows() -> None:
    for weight in make_spec("qwen2", head_dim=8).weights():
        assert weight.shape == (sum(weight.piece_rows), *weight.sources[0].shape[1:])


def test_tied_embedding_is_stored_as_the_head_is() -> None:
    spec = make_spec("llama", tie_word_embeddings=True)
    first, *_, last = spec.groups()
    assert spec.is_tied
    assert first.weights[0].kind == "head"
    assert [weight.name for weight in last.weights] == ["final_norm.weight"]


def test_a_layers_weights_stand_in_the_order_in_which_they_are_read() -> None:
    names = [weight.name for weight in weights_of(make_spec("qwen2", head_dim=8).layers[1])]
    leaves = ["attn_norm.weight", "qkv.weight", "qkv.bias", "o.weight", "mlp_norm.weight",
              "gate_up.weight", "down.weight"]  # fmt: skip
    assert names == [f"layers.1.{leaf}" for leaf in leaves]


def test_matrices_are_divided_by_what_they_make_or_by_what_they_read() -> None:
    shards = {w.name: w.shard for w in make_spec("qwen2", head_dim=8).weights()}
    by_rows = {"embed.weight", "lm_head.weight"}
    by_rows |= {
        f"layers.{i}.{leaf}"
        for i in (0, 1)
        for leaf in ("qkv.weight", "qkv.bias", "gate_up.weight")
    }
    by_columns = {f"layers.{i}.{leaf}.weight" for i in (0, 1) for leaf in ("o", "down")}
    assert {name for name, shard in shards.items() if shard == "rows"} == by_rows
    assert {name for name, shard in shards.items() if shard == "columns"} == by_columns


# --- what no family says yet -------------------------------------------------------------------

LOCAL, GLOBAL = RoPESpec(theta=1e4, rotary_dim=8), RoPESpec(theta=1e6, rotary_dim=16)
EXPERTS = 4


def weight(
    name: str, *shape: int, kind: WeightKind = "linear", shard: Shard = "none"
) -> WeightSpec:
    return WeightSpec(
        name=name, shape=shape, kind=kind, sources=(Source(name=name, shape=shape),), shard=shard
    )


def linear(name: str, outputs: int, inputs: int, kind: WeightKind = "linear") -> LinearSpec:
    return LinearSpec(weight=weight(f"{name}.weight", outputs, inputs, kind=kind, shard="rows"))


def norm(name: str) -> NormSpec:
    return NormSpec(weight=weight(f"{name}.weight", 32, kind="norm"), epsilon=1e-6)


def mlp(name: str, *, stacked: int = 1) -> MLPSpec:
    kind: WeightKind = "linear" if stacked == 1 else "experts"
    return MLPSpec(
        activation="silu",
        is_gated=True,
        up=linear(f"{name}.gate_up", stacked * 64, 32, kind),
        down=linear(f"{name}.down", stacked * 32, 32, kind),
    )


def attention(name: str, *, reads_layer: int | None = None) -> AttentionSpec:
    return AttentionSpec(
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        scale=0.25,
        rope=GLOBAL if reads_layer is None else LOCAL,
        window=None if reads_layer is None else 8,
        softcap=50.0,
        kv_of_layer=reads_layer,
        qkv=linear(f"{name}.qkv", 128 if reads_layer is None else 64, 32),
        q_norm=norm(f"{name}.q_norm"),
        sinks=weight(f"{name}.sinks", 4, kind="state"),
        output=linear(f"{name}.o", 32, 64),
    )


def linear_attention(name: str) -> LinearAttentionSpec:
    return LinearAttentionSpec(
        num_key_heads=2,
        num_value_heads=4,
        key_dim=8,
        value_dim=8,
        convolution_width=4,
        inputs=linear(f"{name}.inputs", 96, 32),
        gates=linear(f"{name}.gates", 8, 32),
        convolution=weight(f"{name}.convolution", 64, 4, kind="state"),
        decay=weight(f"{name}.decay", 4, kind="state"),
        step_bias=weight(f"{name}.step_bias", 4, kind="state"),
        norm=norm(f"{name}.norm"),
        output=linear(f"{name}.o", 32, 32),
    )


def layer(index: int, mixer: AttentionSpec | LinearAttentionSpec, *, routed: bool) -> LayerSpec:
    name = f"layers.{index}"
    experts = ExpertsSpec(
        num_experts=EXPERTS,
        experts_per_token=2,
        norm=None,
        router=linear(f"{name}.router", EXPERTS, 32),
        expert=mlp(f"{name}.experts", stacked=EXPERTS),
        scoring="sigmoid",
        shared=mlp(f"{name}.shared"),
        shared_gate=linear(f"{name}.shared_gate", 1, 32),
    )
    return LayerSpec(
        index=index,
        mixer_norm=norm(f"{name}.mixer_norm"),
        mixer=mixer,
        mixer_post_norm=norm(f"{name}.mixer_post_norm"),
        mlp_norm=norm(f"{name}.mlp_norm"),
        mlp=mlp(name),
        experts=experts if routed else None,
        mlp_post_norm=norm(f"{name}.mlp_post_norm"),
        residual_scale=0.5,
    )


def hybrid() -> ModelSpec:
    """Return a model with everything that a spec can say and no backend computes."""
    plain = make_spec("llama", tie_word_embeddings=True)
    layers = (
        layer(0, linear_attention("layers.0"), routed=False),
        layer(1, attention("layers.1"), routed=True),
        layer(2, attention("layers.2", reads_layer=1), routed=True),
    )
    return replace(
        plain,
        embedding=replace(plain.embedding, scale=5.6),
        layers=layers,
        head=replace(plain.head, logit_scale=0.25, softcap=30.0, pooling="last"),
    )


def test_a_hybrid_of_experts_states_and_shared_keys_is_said_and_stored() -> None:
    spec = hybrid()
    groups = {group.name: [weight.name for weight in group.weights] for group in spec.groups()}
    assert list(groups) == ["embed", *(f"layers.{index}" for index in range(3)), "final"]
    names = [name for group in groups.values() for name in group]
    assert len(names) == len(set(names))
    assert groups["layers.0"][:4] == [
        f"layers.0.{leaf}"
        for leaf in ("mixer_norm.weight", "inputs.weight", "gates.weight", "convolution")
    ]
    assert "layers.1.sinks" in groups["layers.1"]
    assert groups["layers.1"].index("layers.1.down.weight") < groups["layers.1"].index(
        "layers.1.router.weight"
    )
    kinds = {planned.name: planned.scheme for planned in map(Storage().plan_tensor, spec.weights())}
    assert kinds["layers.1.experts.gate_up.weight"] == kinds["layers.1.gate_up.weight"]
    assert {kinds["layers.0.decay"], kinds["layers.1.sinks"], kinds["final_norm.weight"]} == {
        "fp32"
    }


def test_layers_that_read_other_keys_turn_by_another_table_and_see_less() -> None:
    mixers = [layer.mixer for layer in hybrid().layers if isinstance(layer.mixer, AttentionSpec)]
    assert [mixer.kv_of_layer for mixer in mixers] == [None, 1]
    assert {mixer.rope for mixer in mixers} == {LOCAL, GLOBAL}
    assert [mixer.window for mixer in mixers] == [None, 8]
