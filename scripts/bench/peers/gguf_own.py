"""Layers of a GGUF whose family shares little with others: latents, and heads of two widths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gguf import ExpertGatingFuncType, RopeScalingType

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType as Quant
    from gguf import GGUFWriter

    from peers.gguf_families import Tensors

_TURNS_NOT = 1e30


def add_latent_facts(writer: GGUFWriter, settings: dict[str, Any]) -> None:
    """Add what DeepSeek's latent attention needs: heads are told as they attend."""
    turning, rank = settings["qk_rope_head_dim"], settings["kv_lora_rank"]
    writer.add_head_count_kv(1)
    writer.add_key_length(rank + turning)
    writer.add_value_length(rank)
    writer.add_key_length_mla(settings["qk_nope_head_dim"] + turning)
    writer.add_value_length_mla(settings["v_head_dim"])
    writer.add_kv_lora_rank(rank)
    writer.add_q_lora_rank(settings["q_lora_rank"])
    writer.add_rope_dimension_count(turning)
    if scaling := settings.get("rope_scaling"):
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])
    writer.add_leading_dense_block_count(settings["first_k_dense_replace"])
    writer.add_expert_count(settings["n_routed_experts"])
    writer.add_expert_used_count(settings["num_experts_per_tok"])
    writer.add_expert_shared_count(settings["n_shared_experts"])
    writer.add_expert_feed_forward_length(settings["moe_intermediate_size"])
    writer.add_expert_weights_scale(settings["routed_scaling_factor"])
    writer.add_expert_weights_norm(value=settings.get("norm_topk_prob", False))
    if _has_groups(settings):
        writer.add_expert_group_count(settings["n_group"])
        writer.add_expert_group_used_count(settings["topk_group"])
    scores = ExpertGatingFuncType.SIGMOID if _has_groups(settings) else ExpertGatingFuncType.SOFTMAX
    writer.add_expert_gating_func(scores)


def add_latent_layer(tensors: Tensors, index: int, settings: dict[str, Any], kind: Quant) -> None:
    """Add a layer of DeepSeek-V2 or V3."""
    at, hidden, heads = f"blk.{index}.", settings["hidden_size"], settings["num_attention_heads"]
    plain, turning = settings["qk_nope_head_dim"], settings["qk_rope_head_dim"]
    rank, value = settings["kv_lora_rank"], settings["v_head_dim"]
    asked = settings["q_lora_rank"]
    norms = (("attn", hidden), ("attn_q_a", asked), ("attn_kv_a", rank), ("ffn", hidden))
    for norm, width in norms:
        tensors.floats(f"{at}{norm}_norm.weight", width)
    tensors.add(f"{at}attn_q_a.weight", asked, hidden, kind)
    tensors.add(f"{at}attn_q_b.weight", heads * (plain + turning), asked, kind)
    tensors.add(f"{at}attn_kv_a_mqa.weight", rank + turning, hidden, kind)
    tensors.add(f"{at}attn_k_b.weight", rank, plain, kind, stack=heads)
    tensors.add(f"{at}attn_v_b.weight", value, rank, kind, stack=heads)
    tensors.add(f"{at}attn_output.weight", hidden, heads * value, kind)
    if index < settings["first_k_dense_replace"]:
        _add_mlp(tensors, f"{at}ffn_", "", hidden, settings["intermediate_size"], kind)
        return
    count, width = settings["n_routed_experts"], settings["moe_intermediate_size"]
    tensors.floats(f"{at}ffn_gate_inp.weight", count, hidden, deviation=0.02)
    if _has_groups(settings):
        tensors.floats(f"{at}exp_probs_b.bias", count, deviation=0.02)
    _add_mlp(tensors, f"{at}ffn_", "_exps", hidden, width, kind, stack=count)
    _add_mlp(tensors, f"{at}ffn_", "_shexp", hidden, width * settings["n_shared_experts"], kind)


def _has_groups(settings: dict[str, Any]) -> bool:
    """Whether experts are chosen as V3 does: sigmoids, a bias for the choice, groups."""
    return "n_group" in settings


def add_gemma4_facts(writer: GGUFWriter, settings: dict[str, Any]) -> None:
    """Add what Gemma 4 needs: settings with a number for each layer."""
    windowed = _windowed(settings)
    heads = {True: settings["num_key_value_heads"], False: settings["num_global_key_value_heads"]}
    writer.add_head_count_kv([heads[one] for one in windowed])
    writer.add_feed_forward_length([settings["intermediate_size"]] * len(windowed))
    writer.add_shared_kv_layers(0)
    writer.add_embedding_length_per_layer_input(0)
    writer.add_sliding_window(settings["sliding_window"])
    writer.add_sliding_window_pattern(windowed)
    writer.add_key_length(settings["global_head_dim"])
    writer.add_value_length(settings["global_head_dim"])
    writer.add_key_length_swa(settings["head_dim"])
    writer.add_value_length_swa(settings["head_dim"])
    writer.add_rope_freq_base_swa(10000.0)
    writer.add_rope_dimension_count(settings["global_head_dim"])
    writer.add_rope_dimension_count_swa(settings["head_dim"])
    writer.add_final_logit_softcapping(settings["final_logit_softcapping"])


def add_gemma4_ends(tensors: Tensors, settings: dict[str, Any]) -> None:
    """Add what frequencies are divided by where there is no window: a quarter of them turns."""
    count = settings["global_head_dim"] // 2
    tensors.given("rope_freqs.weight", [1.0] * (count // 4) + [_TURNS_NOT] * (count - count // 4))


def add_gemma4_layer(tensors: Tensors, index: int, settings: dict[str, Any], kind: Quant) -> None:
    """Add a dense layer of Gemma 4; where it sees all, keys are values, too."""
    at, hidden = f"blk.{index}.", settings["hidden_size"]
    is_windowed = _windowed(settings)[index]
    head = settings["head_dim" if is_windowed else "global_head_dim"]
    kept = settings["num_key_value_heads" if is_windowed else "num_global_key_value_heads"]
    mixed = settings["num_attention_heads"] * head
    for norm in ("attn", "post_attention", "ffn", "post_ffw"):
        tensors.floats(f"{at}{norm}_norm.weight", hidden)
    for norm in ("attn_q_norm", "attn_k_norm"):
        tensors.floats(f"{at}{norm}.weight", head)
    tensors.floats(f"{at}layer_output_scale.weight", 1)
    tensors.add(f"{at}attn_q.weight", mixed, hidden, kind)
    for part in ("k", "v") if is_windowed else ("k",):
        tensors.add(f"{at}attn_{part}.weight", kept * head, hidden, kind)
    tensors.add(f"{at}attn_output.weight", hidden, mixed, kind)
    _add_mlp(tensors, f"{at}ffn_", "", hidden, settings["intermediate_size"], kind)


def _windowed(settings: dict[str, Any]) -> list[bool]:
    return [kind == "sliding_attention" for kind in settings["layer_types"]]


def _add_mlp(
    tensors: Tensors, at: str, end: str, hidden: int, width: int, kind: Quant, stack: int = 0
) -> None:
    for part, rows, columns in (
        ("gate", width, hidden),
        ("up", width, hidden),
        ("down", hidden, width),
    ):
        tensors.add(f"{at}{part}{end}.weight", rows, columns, kind, stack=stack)
