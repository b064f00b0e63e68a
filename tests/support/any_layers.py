"""Models of layers of every kind, as no family puts them together, and files of random weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from model_pairs import write_file
from random_files import random_tensor

from zse.models.layer_spec import AttentionSpec, ExpertsSpec, LayerInputSpec, LayerSpec
from zse.models.parts import Norms, Piece, embedding, head_of, linear, mlp, vector, weight
from zse.models.rope import RoPESpec
from zse.models.spec import HeadSpec, LayerInputsSpec, ModelSpec
from zse.models.uniform import UniformDecoder
from zse.models.weights import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.layer_spec import NormSpec

HIDDEN, VOCABULARY = 128, 320
NORMS = Norms(epsilon=1e-5)
ROPE = RoPESpec(theta=10000.0, rotary_dim=32)
HEADER = UniformDecoder(
    family="llama",
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    intermediate_size=192,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
).to_json()
"""Of some model that files can have: what these files' specs are is told apart from it."""


def norm(name: str, size: int = HIDDEN) -> NormSpec:
    return NORMS.norm(name, f"their.{name}", size)


def attention(name: str, *, heads: tuple[int, int, int] = (4, 2, 32), **fields: Any) -> Any:
    """Return attention of query heads, heads of keys and values, and their columns."""
    num_heads, num_kv_heads, head_dim = heads
    kinds = 0 if fields.get("kv_of_layer") is not None else 2 - fields.get("values_are_keys", 0)
    rows = head_dim * (num_heads * (1 + fields.get("is_gated", 0)) + num_kv_heads * kinds)
    bias = fields.pop("bias", False)
    if fields.pop("has_sinks", False):
        fields["sinks"] = vector(f"{name}.sinks", f"their.{name}.sinks", num_heads, "bias")
    for kind, width in dict(fields.pop("norms", {})).items():
        fields[kind] = norm(f"{name}.{kind}", width)
    mixed = num_heads * head_dim
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        qkv=linear(f"{name}.qkv", [Piece(name=f"{name}.qkv", rows=rows)], HIDDEN, bias=bias),
        output=linear(f"{name}.o", [Piece(name=f"{name}.o", rows=HIDDEN)], mixed, bias=bias),
        **{"scale": head_dim**-0.5, "rope": ROPE, **fields},
    )


def dense(name: str, **fields: Any) -> Any:
    names = [f"{name}.gate", f"{name}.up"]
    return mlp(f"{name}.mlp", names, f"{name}.down", hidden=HIDDEN, width=192, **fields)


def experts(
    name: str,
    *,
    count: int = 8,
    chosen: int = 3,
    width: int = 64,
    bias: bool = False,
    activation: Any = "silu",
    limit: float | None = None,
    has_shared: bool = False,
    has_shared_gate: bool = False,
    **fields: Any,
) -> ExpertsSpec:
    """Return a mixture; what ``fields`` name and is True becomes a weight of that name."""

    def row_of(what: str, rows: int) -> Any:
        pieces = [Piece(name=f"{name}.{what}", rows=rows)]
        return linear(f"{name}.{what}", pieces, HIDDEN, kind="gate", shard="none", bias=bias)

    for what in ("selection_bias", "expert_scale"):
        if fields.pop(what, False):
            fields[what] = vector(f"{name}.{what}", f"their.{name}.{what}", count, "bias")
    for what in ("router_norm", "post_norm"):
        if fields.pop(what, False):
            fields[what] = norm(f"{name}.{what}")
    names = [f"{name}.{{index}}.gate", f"{name}.{{index}}.up"]
    expert = mlp(
        f"{name}.experts",
        names,
        f"{name}.{{index}}.down",
        hidden=HIDDEN,
        width=width,
        activation=activation,
        bias=bias,
        stack=count,
    )
    return ExpertsSpec(
        num_experts=count,
        experts_per_token=chosen,
        router=row_of("router", count),
        expert=replace(expert, limit=limit),
        shared=dense(f"{name}.shared") if has_shared else None,
        shared_gate=row_of("shared_gate", 1) if has_shared_gate else None,
        **{"norm": norm(f"{name}.norm"), **fields},
    )


def own_input(name: str, width: int) -> LayerInputSpec:
    gate = [Piece(name=f"{name}.input_gate", rows=width)]
    projection = [Piece(name=f"{name}.input_projection", rows=HIDDEN)]
    return LayerInputSpec(
        activation="gelu_tanh",
        gate=linear(f"{name}.input_gate", gate, HIDDEN),
        projection=linear(f"{name}.input_projection", projection, width),
        post_norm=norm(f"{name}.input_norm"),
    )


def layer_inputs(num_layers: int, width: int) -> LayerInputsSpec:
    columns = num_layers * width
    table = Source(name="their.table.weight", shape=(VOCABULARY, columns))
    projection = [Piece(name="input_projection", rows=columns)]
    return LayerInputsSpec(
        width=width,
        table=weight("input_table.weight", "embed", [table]),
        scale=6.0,
        projection=linear("input_projection", projection, HIDDEN),
        norm=norm("input_norm", width),
    )


def layer(index: int, mixer: Callable[[str], Any], **fields: Any) -> LayerSpec:
    """Return a layer with norms of what it reads, and a dense MLP unless it says otherwise.

    ``told`` are the columns of its own input.
    """
    name = f"layers.{index}"
    parts = {"mixer_norm": norm(f"{name}.mixer_norm"), "mlp_norm": norm(f"{name}.mlp_norm")}
    for what in ("mixer_post_norm", "mlp_post_norm", "dense_post_norm"):
        if fields.pop(what, False):
            fields[what] = norm(f"{name}.{what}")
    if fields.pop("stream_scale", False):
        fields["stream_scale"] = vector(f"{name}.scale", f"their.{name}.scale", 1)
    if told := fields.pop("told", 0):
        fields["own_input"] = own_input(name, told)
    for what in ("mlp", "experts"):
        if what in fields and fields[what] is not None:
            fields[what] = fields[what](name)
    fields = {**parts, "mlp": dense(name) if "mlp" not in fields else None, **fields}
    return LayerSpec(index=index, mixer=mixer(name), **fields)


def model(layers: list[LayerSpec], **head: Any) -> ModelSpec:
    table = embedding("embed", VOCABULARY, HIDDEN, tied=True)
    if (own := layers[0].own_input) is not None:
        width = own.gate.weight.shape[0]
        table = replace(table, layer_inputs=layer_inputs(len(layers), width))
    return ModelSpec(
        family="llama",
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        max_position=512,
        embedding=table,
        layers=tuple(layers),
        head=HeadSpec(norm=norm("final_norm"), weight=head_of(table, tied=True), **head),
        header=HEADER,
    )


def write_model(path: Path, spec: ModelSpec, quantization: str) -> None:
    """Write a file of random weights for a spec."""
    generator = torch.Generator().manual_seed(11)
    tensors = {
        piece.name: random_tensor(weight, piece.shape, generator)
        for weight in spec.weights()
        for piece in weight.pieces()
    }
    write_file(path, spec, tensors, quantization)
