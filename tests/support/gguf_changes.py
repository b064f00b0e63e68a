"""What llama.cpp's converter does to the tensors of some families (``conversion/*.py``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_MTP = {
    "mtp.fc": "eh_proj",
    "mtp.pre_fc_norm_embedding": "enorm",
    "mtp.pre_fc_norm_hidden": "hnorm",
    "mtp.norm": "shared_head_norm",
}
HYBRIDS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return what some families say besides, without the architecture's name."""
    family, found = config["model_type"], {}
    if family in HYBRIDS:
        heads = config["linear_num_value_heads"]
        found = {
            "ssm.conv_kernel": 4,
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"],
            "ssm.time_step_rank": heads,
            "ssm.inner_size": heads * config["linear_value_head_dim"],
            "rope.dimension_count": config["head_dim"] // 4,
        }
        if family != "qwen3_5_moe":
            found |= {
                "nextn_predict_layers": 1,
                "block_count": config["num_hidden_layers"] + 1,
            }
    if family == "glm4_moe":
        found = {
            "nextn_predict_layers": 1,
            "block_count": config["num_hidden_layers"] + 1,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 1.5,
        }
    if family in ("starcoder2", "gpt2", "bert"):
        found = {"attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": None}
    if family == "granite":
        found = {
            "attention.scale": config["attention_multiplier"],
            "embedding_scale": config["embedding_multiplier"],
            "residual_scale": config["residual_multiplier"],
            "logit_scale": config["logits_scaling"],
        }
    if family.startswith("gemma4"):
        found = _of_gemma4(config)
    if family.startswith("deepseek"):
        found = _of_latents(config)
    if family == "gpt_oss":
        found = {"expert_feed_forward_length": config["intermediate_size"]}
    return found


def _of_gemma4(config: dict[str, Any]) -> dict[str, Any]:
    """Layers differ: those without a window have other heads, the last ones a wider MLP."""
    windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
    first_shared = len(windowed) - config["num_kv_shared_layers"]
    wide = 1 + config["use_double_wide_mlp"]
    widths = [
        config["intermediate_size"] * (wide if index >= first_shared else 1)
        for index in range(len(windowed))
    ]
    heads = {True: config["num_key_value_heads"], False: config["num_global_key_value_heads"]}
    return {
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "attention.sliding_window_pattern": windowed,
        "attention.key_length": config["global_head_dim"],
        "attention.value_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "feed_forward_length": widths,
        "attention.head_count_kv": [heads[one] for one in windowed],
        "rope.freq_base": config["rope_parameters"]["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "rope.dimension_count": config["global_head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "expert_used_count": config.get("top_k_experts"),
    }


def factors_of_gemma4(config: dict[str, Any]) -> torch.Tensor:
    """Return what the frequencies are divided by where there is no window."""
    count = config["global_head_dim"] // 2
    kept = int(count * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    return torch.tensor([1.0] * kept + [1e30] * (count - kept))


def _gemma4(name: str, values: torch.Tensor) -> tuple[str, torch.Tensor]:
    layer = name.split(".")[2]
    if name.endswith("router.scale"):
        name = f"blk.{layer}.ffn_gate_inp.scale"
    elif name.endswith("per_expert_scale"):
        name = f"blk.{layer}.ffn_down_exps.scale"
    elif name.endswith(("layer_scalar", "gate_up_proj", "experts.down_proj")):
        name += ".weight"
    return name, values


def _of_latents(config: dict[str, Any]) -> dict[str, Any]:
    """Heads are told as they attend: one, as wide as what is kept."""
    turning, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    scaling = config["rope_scaling"]
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + turning,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + turning,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config["q_lora_rank"],
        "rope.dimension_count": turning,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
        "rope.scaling.yarn_log_multiplier": 0.1 * scaling["mscale_all_dim"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": 2 if config.get("scoring_func") == "sigmoid" else 1,
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
    }


def changed(
    family: str, config: dict[str, Any], name: str, values: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that become of one, by names that the package's table knows."""
    if family == "gpt_oss":
        yield from _gpt_oss(name, values)
    elif family in HYBRIDS:
        yield from _hybrid(family, config, name, values)
    elif family == "gemma4":
        yield _gemma4(name, values)
    elif name.endswith("kv_b_proj.weight"):
        sizes = [config["qk_nope_head_dim"], config["v_head_dim"]]
        heads = values.view(config["num_attention_heads"], sum(sizes), -1)
        keys, made = torch.split(heads, sizes, 1)
        yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), made
    elif family == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight", name):
        yield name, values.t()
    else:
        yield name.replace("e_score_correction_bias", "e_score_correction.bias"), values


def _gpt_oss(name: str, values: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if "sinks" in name:
        yield f"{name}.weight", values
    elif "experts" not in name:
        yield name, values
    elif name.endswith("_bias"):
        stem = name.removesuffix("_bias")
        if "gate_up" in name:
            yield f"{stem.replace('gate_up', 'gate')}.bias", values[:, ::2]
            yield f"{stem.replace('gate_up', 'up')}.bias", values[:, 1::2]
        else:
            yield f"{stem}.bias", values
    else:
        turned = values.transpose(1, 2)
        if "gate_up" in name:
            yield f"{name.replace('gate_up', 'gate')}.weight", turned[:, ::2]
            yield f"{name.replace('gate_up', 'up')}.weight", turned[:, 1::2]
        else:
            yield f"{name}.weight", turned


def _hybrid(
    family: str, config: dict[str, Any], name: str, values: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    last = config["num_hidden_layers"]
    if name.startswith("mtp.layers.0."):
        name = name.replace("mtp.layers.0.", f"model.layers.{last}.")
    elif name.startswith("mtp."):
        part, _, leaf = name.rpartition(".")
        name = f"blk.{last}.nextn.{_MTP[part]}.{leaf}"
    if family != "qwen3_next" and "linear_attn." in name:
        values = _tiled(config, name, values)
    if name.endswith("A_log"):
        yield name, -torch.exp(values)
    elif name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), values
    elif "conv1d" in name:
        yield name, values.squeeze(1)
    elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        yield name, values + 1
    elif "in_proj_qkvz" in name:
        keys, width = config["linear_num_key_heads"], config["linear_value_head_dim"]
        shared = config["linear_num_value_heads"] // keys * width
        sizes = [config["linear_key_head_dim"]] * 2 + [shared] * 2
        split = torch.split(values.view(keys, sum(sizes), -1), sizes, 1)
        query, key, value, gate = (part.reshape(-1, values.shape[1]) for part in split)
        yield name.replace("qkvz", "qkv"), torch.cat((query, key, value))
        yield name.replace("qkvz", "z"), gate
    else:
        yield name, values


def _tiled(config: dict[str, Any], name: str, values: torch.Tensor) -> torch.Tensor:
    """Return heads of values member by member, which checkpoints have group by group."""
    keys, width = config["linear_num_key_heads"], config["linear_value_head_dim"]

    def tile(rows: torch.Tensor, size: int) -> torch.Tensor:
        heads = rows.reshape(keys, -1, size, *rows.shape[1:])
        return heads.transpose(0, 1).reshape(rows.shape)

    fixed = 2 * keys * config["linear_key_head_dim"]
    if "in_proj_qkv" in name or "conv1d" in name:
        return torch.cat((values[:fixed], tile(values[fixed:], width)))
    if "in_proj_z" in name:
        return tile(values, width)
    if "out_proj" in name:
        return tile(values.t(), width).t()
    is_of_heads = re.search(r"in_proj_[ab]\.|A_log|dt_bias", name)
    return tile(values, 1) if is_of_heads else values
