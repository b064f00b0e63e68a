"""Checkpoint tensor names to ours: what is read from where, in the order it is executed.

The plan is made from the configuration alone, before a byte of the checkpoint is read, so that a
checkpoint that does not match its configuration is found at once. Matrices that are used together
are joined along their rows (q, k, v; gate, up), which is what the kernels read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from zse.records import record

if TYPE_CHECKING:
    from zse.models.config import ModelConfig

Kind = Literal["linear", "embed", "head", "norm", "bias"]

EMBED = "embed.weight"
FINAL_NORM = "final_norm.weight"
LM_HEAD = "lm_head.weight"


@record
class TensorSource:
    """One tensor of ours and the checkpoint tensors that are stacked, by rows, to make it."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    sources: tuple[tuple[str, tuple[int, ...]], ...]
    """``(checkpoint name, shape)``, in row order."""


@record
class GroupPlan:
    """Tensors that are loaded together."""

    name: str
    tensors: tuple[TensorSource, ...]


def tensor_plan(config: ModelConfig) -> list[GroupPlan]:
    """Return every tensor of a model in execution order.

    A tied embedding is listed once, as ``embed.weight`` of kind ``head``: it is stored the way the
    head is, and its rows are converted when they are gathered.
    """
    hidden, vocabulary = config.hidden_size, config.vocab_size
    embed_kind: Kind = "head" if config.tie_word_embeddings else "embed"
    embed = _single(EMBED, (vocabulary, hidden), embed_kind, "model.embed_tokens.weight")
    groups = [GroupPlan(name="embed", tensors=(embed,))]
    groups += [_layer_plan(config, index) for index in range(config.num_layers)]
    final = [_single(FINAL_NORM, (hidden,), "norm", "model.norm.weight")]
    if not config.tie_word_embeddings:
        final.append(_single(LM_HEAD, (vocabulary, hidden), "head", "lm_head.weight"))
    groups.append(GroupPlan(name="final", tensors=tuple(final)))
    return groups


def _single(name: str, shape: tuple[int, ...], kind: Kind, source: str) -> TensorSource:
    return TensorSource(name=name, shape=shape, kind=kind, sources=((source, shape),))


def _joined(name: str, kind: Kind, sources: list[tuple[str, tuple[int, ...]]]) -> TensorSource:
    rows = sum(shape[0] for _, shape in sources)
    shape = (rows, *sources[0][1][1:])
    return TensorSource(name=name, shape=shape, kind=kind, sources=tuple(sources))


def _layer_plan(config: ModelConfig, index: int) -> GroupPlan:
    ours, theirs = f"layers.{index}", f"model.layers.{index}"
    hidden, head = config.hidden_size, config.head_dim
    query_rows, kv_rows = config.num_heads * head, config.num_kv_heads * head
    rows = {"q": query_rows, "k": kv_rows, "v": kv_rows}

    def norm(our_name: str, their_name: str, size: int) -> TensorSource:
        source = f"{theirs}.{their_name}.weight"
        return _single(f"{ours}.{our_name}.weight", (size,), "norm", source)

    def projections(leaf: str, row_shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
        return [
            (f"{theirs}.self_attn.{part}_proj.{leaf}", (count, *row_shape))
            for part, count in rows.items()
        ]

    tensors = [
        norm("attn_norm", "input_layernorm", hidden),
        _joined(f"{ours}.qkv.weight", "linear", projections("weight", (hidden,))),
    ]
    if config.qkv_bias:
        tensors.append(_joined(f"{ours}.qkv.bias", "bias", projections("bias", ())))
    if config.qk_norm:
        tensors.append(norm("q_norm", "self_attn.q_norm", head))
        tensors.append(norm("k_norm", "self_attn.k_norm", head))
    gate_up_shape = (config.intermediate_size, hidden)
    tensors += [
        _single(
            f"{ours}.o.weight", (hidden, query_rows), "linear", f"{theirs}.self_attn.o_proj.weight"
        ),
        norm("mlp_norm", "post_attention_layernorm", hidden),
        _joined(
            f"{ours}.gate_up.weight",
            "linear",
            [(f"{theirs}.mlp.{part}_proj.weight", gate_up_shape) for part in ("gate", "up")],
        ),
        _single(
            f"{ours}.down.weight",
            (hidden, config.intermediate_size),
            "linear",
            f"{theirs}.mlp.down_proj.weight",
        ),
    ]
    return GroupPlan(name=ours, tensors=tuple(tensors))
