"""Layers of a GGUF, family by family, as llama.cpp looks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gguf import ExpertGatingFuncType
from gguf import GGMLQuantizationType as Quant

from peers.gguf_own import (
    add_gemma4_ends,
    add_gemma4_facts,
    add_gemma4_layer,
    add_latent_facts,
    add_latent_layer,
)

if TYPE_CHECKING:
    from gguf import GGUFWriter

LINEAR_EVERY = 4
"""One layer of so many has full attention, in families with linear attention."""


class Tensors(Protocol):
    """Adds tensors of random numbers to a file."""

    def add(self, name: str, rows: int, columns: int, quant: Quant, stack: int = 0) -> None:
        """Add a matrix, or a stack of them."""

    def floats(self, name: str, *shape: int, deviation: float = 0.0) -> None:
        """Add numbers of 32 bits around zero, or ones."""

    def given(self, name: str, values: list[float]) -> None:
        """Add numbers of 32 bits as they are."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What layers of a family have in a GGUF."""

    architecture: str
    norms: tuple[str, ...] = ("attn", "ffn")
    """Those as wide as the stream."""
    normed_heads: str = ""
    """``each`` or ``all``: whether queries and keys are normed by head or together."""
    has_bias: bool = False
    joins: frozenset[str] = frozenset()
    """``heads``: q, k and v are one matrix; ``gates``: gate and up are."""
    shared: str = ""
    """``gated`` or ``plain``: the expert of every token."""
    selects_with_bias: bool = False
    is_hybrid: bool = False
    joins_rates: bool = False
    """Whether how much linear attention forgets and learns is of one matrix."""
    head_is_table: bool = False
    """Whether llama.cpp takes no other head than the embedding."""
    is_plain: bool = False
    """Whether norms and matrices have biases throughout, and MLPs no gate."""


_AFTER = ("attn", "post_attention")
_AROUND = ("attn", "post_attention", "ffn", "post_ffw")
FORMS = {
    "olmo2": Form(architecture="olmo2", norms=("post_attention", "post_ffw"), normed_heads="all"),
    "olmo3": Form(architecture="olmo2", norms=("post_attention", "post_ffw"), normed_heads="all"),
    "granite": Form(architecture="granite"),
    "gpt2": Form(
        architecture="gpt2",
        joins=frozenset(["heads"]),
        has_bias=True,
        is_plain=True,
        head_is_table=True,
    ),
    "starcoder2": Form(architecture="starcoder2", has_bias=True, is_plain=True, head_is_table=True),
    "phi3": Form(architecture="phi3", joins=frozenset(["heads", "gates"])),
    "smollm3": Form(architecture="smollm3"),
    "gemma2": Form(architecture="gemma2", norms=_AROUND, head_is_table=True),
    "gemma3_text": Form(architecture="gemma3", norms=_AROUND, normed_heads="each"),
    "glm4": Form(architecture="glm4", norms=_AROUND, has_bias=True, joins=frozenset(["gates"])),
    "qwen3": Form(architecture="qwen3", normed_heads="each"),
    "mixtral": Form(architecture="llama"),
    "qwen2_moe": Form(architecture="qwen2moe", has_bias=True, shared="gated"),
    "qwen3_moe": Form(architecture="qwen3moe", normed_heads="each"),
    "glm4_moe": Form(
        architecture="glm4moe",
        norms=_AFTER,
        has_bias=True,
        shared="plain",
        selects_with_bias=True,
    ),
    "qwen3_5_moe_text": Form(
        architecture="qwen35moe",
        norms=_AFTER,
        normed_heads="each",
        shared="gated",
        is_hybrid=True,
    ),
    "qwen3_5_text": Form(architecture="qwen35", norms=_AFTER, normed_heads="each", is_hybrid=True),
    "qwen3_next": Form(
        architecture="qwen3next",
        norms=_AFTER,
        normed_heads="each",
        shared="gated",
        is_hybrid=True,
        joins_rates=True,
    ),
    "mistral": Form(architecture="llama"),
    "gpt_oss": Form(architecture="gpt-oss"),
    "deepseek_v2": Form(architecture="deepseek2"),
    "deepseek_v3": Form(architecture="deepseek2"),
    "gemma4_text": Form(architecture="gemma4", head_is_table=True),
}
"""By ``model_type``."""
OWN_FACTS = {
    "deepseek_v2": add_latent_facts,
    "deepseek_v3": add_latent_facts,
    "gemma4_text": add_gemma4_facts,
}
OWN_LAYERS = {
    "deepseek_v2": add_latent_layer,
    "deepseek_v3": add_latent_layer,
    "gemma4_text": add_gemma4_layer,
}


def add_facts(writer: GGUFWriter, settings: dict[str, Any]) -> None:
    """Add what a family's architecture needs beside what all have."""
    if settings["model_type"] in OWN_FACTS:
        OWN_FACTS[settings["model_type"]](writer, settings)
        return
    form, head = FORMS[settings["model_type"]], _head_of(settings)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(int(head * settings.get("partial_rotary_factor", 1.0)))
    if settings.get("sliding_window"):
        writer.add_sliding_window(settings["sliding_window"])
    if settings.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(settings["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(settings["final_logit_softcapping"])
    if count := _count_of_experts(settings):
        writer.add_expert_count(count)
        writer.add_expert_used_count(settings["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(_width_of(settings))
    if form.shared:
        writer.add_expert_shared_count(1)
        writer.add_expert_shared_feed_forward_length(_shared_width_of(settings))
    if form.selects_with_bias:
        writer.add_leading_dense_block_count(settings["first_k_dense_replace"])
        writer.add_expert_weights_scale(settings["routed_scaling_factor"])
        writer.add_expert_weights_norm(settings["norm_topk_prob"])
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    if form.is_plain:
        writer.add_layer_norm_eps(settings.get("norm_epsilon", 1e-5))
    if settings["model_type"] == "granite":
        writer.add_attention_scale(settings["attention_multiplier"])
        writer.add_embedding_scale(settings["embedding_multiplier"])
        writer.add_logit_scale(settings["logits_scaling"])
        writer.add_residual_scale(settings["residual_multiplier"])
    if form.is_hybrid:
        writer.add_full_attention_interval(LINEAR_EVERY)
        if settings["model_type"] != "qwen3_next":  # which knows no pictures
            writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(settings["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(settings["linear_key_head_dim"])
        writer.add_ssm_group_count(settings["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(settings["linear_num_value_heads"])
        writer.add_ssm_inner_size(
            settings["linear_num_value_heads"] * settings["linear_value_head_dim"]
        )


def add_ends(tensors: Tensors, settings: dict[str, Any]) -> None:
    """Add what a family has outside its layers beside what all have."""
    hidden = settings["hidden_size"]
    if FORMS[settings["model_type"]].is_plain:
        tensors.floats("output_norm.bias", hidden, deviation=0.02)
    if settings["model_type"] == "gpt2":
        tensors.floats("position_embd.weight", settings["n_positions"], hidden, deviation=0.02)
    if settings["model_type"] == "gemma4_text":
        add_gemma4_ends(tensors, settings)


def add_layer(tensors: Tensors, index: int, settings: dict[str, Any], kind: Quant) -> None:
    """Add a layer; its matrices, or gpt-oss' experts, are of ``kind``."""
    if settings["model_type"] in OWN_LAYERS:
        OWN_LAYERS[settings["model_type"]](tensors, index, settings, kind)
        return
    at, form = f"blk.{index}.", FORMS[settings["model_type"]]
    if settings["model_type"] == "gpt_oss":
        _add_gpt_oss(tensors, at, settings, kind)
        return
    for norm in form.norms:
        tensors.floats(f"{at}{norm}_norm.weight", settings["hidden_size"])
        if form.is_plain:
            tensors.floats(f"{at}{norm}_norm.bias", settings["hidden_size"], deviation=0.02)
    if form.is_hybrid and (index + 1) % LINEAR_EVERY:
        _add_linear_attention(tensors, at, settings, kind)
    else:
        _add_attention(tensors, at, settings, kind)
    if _count_of_experts(settings) and index >= settings.get("first_k_dense_replace", 0):
        _add_experts(tensors, at, settings, kind)
    else:
        _add_mlp(tensors, at, settings, kind)


def _head_of(settings: dict[str, Any]) -> int:
    return settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]


def _count_of_experts(settings: dict[str, Any]) -> int:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((settings[name] for name in names if name in settings), 0)


def _width_of(settings: dict[str, Any]) -> int:
    return settings.get("moe_intermediate_size") or settings["intermediate_size"]


def _shared_width_of(settings: dict[str, Any]) -> int:
    return settings.get("shared_expert_intermediate_size") or _width_of(settings)


def _projections(settings: dict[str, Any]) -> list[tuple[str, int, int]]:
    hidden, head = settings["hidden_size"], _head_of(settings)
    mixed, kept = settings["num_attention_heads"] * head, settings["num_key_value_heads"] * head
    gates = mixed if FORMS[settings["model_type"]].is_hybrid else 0
    return [
        ("q", mixed + gates, hidden),
        ("k", kept, hidden),
        ("v", kept, hidden),
        ("output", hidden, mixed),
    ]


def _parts(settings: dict[str, Any], width: int) -> list[tuple[str, int, int]]:
    hidden = settings["hidden_size"]
    return [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)]


def _add_attention(tensors: Tensors, at: str, settings: dict[str, Any], kind: Quant) -> None:
    form, head = FORMS[settings["model_type"]], _head_of(settings)
    projections = _projections(settings)
    if "heads" in form.joins:
        joined = sum(rows for part, rows, _ in projections if part != "output")
        projections = [("qkv", joined, settings["hidden_size"]), projections[-1]]
    for part, rows, columns in projections:
        tensors.add(f"{at}attn_{part}.weight", rows, columns, kind)
        if form.is_plain or (form.has_bias and part != "output"):
            tensors.floats(f"{at}attn_{part}.bias", rows, deviation=0.02)
    for part, rows, _ in projections[:2] if form.normed_heads else ():
        width = rows if form.normed_heads == "all" else head
        tensors.floats(f"{at}attn_{part}_norm.weight", width)


def _add_linear_attention(tensors: Tensors, at: str, settings: dict[str, Any], kind: Quant) -> None:
    hidden, heads = settings["hidden_size"], settings["linear_num_value_heads"]
    keys = settings["linear_num_key_heads"] * settings["linear_key_head_dim"]
    values = heads * settings["linear_value_head_dim"]
    channels = 2 * keys + values
    tensors.add(f"{at}attn_qkv.weight", channels, hidden, kind)
    tensors.add(f"{at}attn_gate.weight", values, hidden, kind)
    tensors.add(f"{at}ssm_out.weight", hidden, values, kind)
    joined = FORMS[settings["model_type"]].joins_rates
    rates = {"ba": 2 * heads} if joined else {"alpha": heads, "beta": heads}
    for part, rows in rates.items():
        tensors.add(f"{at}ssm_{part}.weight", rows, hidden, Quant.F16)
    taps = settings["linear_conv_kernel_dim"]
    tensors.floats(f"{at}ssm_conv1d.weight", channels, taps, deviation=0.02)
    tensors.floats(f"{at}ssm_a", heads, deviation=0.02)
    tensors.floats(f"{at}ssm_dt.bias", heads, deviation=0.02)
    tensors.floats(f"{at}ssm_norm.weight", settings["linear_value_head_dim"])


def _add_mlp(tensors: Tensors, at: str, settings: dict[str, Any], kind: Quant) -> None:
    form, parts = FORMS[settings["model_type"]], _parts(settings, settings["intermediate_size"])
    if form.is_plain:
        parts = parts[1:]
    if "gates" in form.joins:
        parts = [("up", 2 * parts[1][1], parts[1][2]), parts[2]]
    for part, rows, columns in parts:
        tensors.add(f"{at}ffn_{part}.weight", rows, columns, kind)
        if form.is_plain:
            tensors.floats(f"{at}ffn_{part}.bias", rows, deviation=0.02)


def _add_experts(tensors: Tensors, at: str, settings: dict[str, Any], kind: Quant) -> None:
    form, count = FORMS[settings["model_type"]], _count_of_experts(settings)
    hidden = settings["hidden_size"]
    tensors.floats(f"{at}ffn_gate_inp.weight", count, hidden, deviation=0.02)
    if form.selects_with_bias:
        tensors.floats(f"{at}exp_probs_b.bias", count, deviation=0.02)
    for part, rows, columns in _parts(settings, _width_of(settings)):
        tensors.add(f"{at}ffn_{part}_exps.weight", rows, columns, kind, stack=count)
    if form.shared:
        for part, rows, columns in _parts(settings, _shared_width_of(settings)):
            tensors.add(f"{at}ffn_{part}_shexp.weight", rows, columns, kind)
    if form.shared == "gated":
        tensors.floats(f"{at}ffn_gate_inp_shexp.weight", hidden, deviation=0.02)


def _add_gpt_oss(tensors: Tensors, at: str, settings: dict[str, Any], kind: Quant) -> None:
    """All but the experts has eight bits, as in the files that are published."""
    hidden, count = settings["hidden_size"], settings["num_local_experts"]
    for norm in _AFTER:
        tensors.floats(f"{at}{norm}_norm.weight", hidden)
    tensors.floats(f"{at}attn_sinks.weight", settings["num_attention_heads"], deviation=0.02)
    for part, rows, columns in _projections(settings):
        tensors.add(f"{at}attn_{part}.weight", rows, columns, Quant.Q8_0)
        tensors.floats(f"{at}attn_{part}.bias", rows, deviation=0.02)
    tensors.floats(f"{at}ffn_gate_inp.weight", count, hidden, deviation=0.02)
    tensors.floats(f"{at}ffn_gate_inp.bias", count, deviation=0.02)
    for part, rows, columns in _parts(settings, _width_of(settings)):
        tensors.add(f"{at}ffn_{part}_exps.weight", rows, columns, kind, stack=count)
        tensors.floats(f"{at}ffn_{part}_exps.bias", count, rows, deviation=0.02)
