"""The architectures of GGUF that are read: whose names and settings stand for which of ours.

A row says what Hugging Face calls the tensors of a layer, and what llama.cpp's converter did to
their numbers: Llama's rotary pairs lie beside each other there (``convert_hf_to_gguf.py``,
``permute``), Gemma's norms have their 1 added.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE = MappingProxyType(
    {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
)
"""Tensors outside of layers."""
LEFT_OUT = ("rope_freqs", "rope_factors_long", "rope_factors_short", "attn_rot_embd")
"""Tables of rotary embeddings: what they hold stands in the settings that are made of them."""


@record
class Architecture:
    """How one architecture lies in a GGUF file."""

    model_type: str
    """As config.json says it."""
    class_name: str
    names: Mapping[str, str]
    """Of a layer's tensors: the file's name -> Hugging Face's, without ``.weight``."""
    experts: Mapping[str, str] | None = None
    """Of tensors that hold every expert's: ``{index}`` stands for the expert."""
    whole: Mapping[str, str] | None = None
    """Of tensors outside of layers; None: Llama's."""
    layer: str = "model.layers.{layer}"
    bare: Mapping[str, str] | None = None
    """Of a layer's tensors whose endings differ: names with their endings -> Hugging Face's."""
    guess: Mapping[str, str] | None = None
    """Of what a layer has that guesses further tokens; such layers follow all others."""
    guess_layer: str = ""
    """How the names of such a layer begin, where they do not begin as those of others."""
    transposed: tuple[str, ...] = ()
    """Matrices that Hugging Face has with inputs before outputs."""
    pairs_are_neighbours: bool = False
    """The rows of queries and keys are in another order."""
    adds_one_to_norms: bool = False
    layers_differ: bool = False
    """Whether settings have another number for each layer; ``OWN_CONFIGS`` reads them."""


_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LLAMA = {
    **_ATTENTION,
    **_MLP,
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA = {
    **_LLAMA,
    **_AFTER,
    "ffn_norm": "pre_feedforward_layernorm",
}
_GEMMA4 = {
    **_GEMMA,
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_GEMMA4_BARE = {
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "layer_output_scale.weight": "layer_scalar",
}
_GEMMA4_WHOLE = {
    **WHOLE,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_ROUTED = {
    **_LLAMA,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{index}.gate_proj",
    "ffn_up_exps": "mlp.experts.{index}.up_proj",
    "ffn_down_exps": "mlp.experts.{index}.down_proj",
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_exps": "block_sparse_moe.experts.{index}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{index}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{index}.w2",
}
_PHI3 = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}


_GPT_OSS = {
    **_ATTENTION,
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",  # as older converters called it
    "ffn_gate_inp": "mlp.router",
}
_GLM4 = {
    **_ATTENTION,
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_mlp_layernorm",
}
_SHARED = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_GLM4_MOE = {
    **_ATTENTION,
    **_MLP,
    **_SHARED,
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
}
_LATENT = {
    **_MLP,
    **_SHARED,
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",  # as older converters left it, in one
    "attn_output": "self_attn.o_proj",
    "ffn_gate_inp": "mlp.gate",
}
_SELECTION_BIAS = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_GLM4_GUESS = {
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
_STARCODER2 = {
    **_ATTENTION,
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2_WHOLE = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_BERT = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_BERT_WHOLE = {
    "token_embd": "embeddings.word_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
}
_HYBRID = {
    **_ROUTED,
    "post_attention_norm": "post_attention_layernorm",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_HYBRID_GUESS = {
    "nextn.eh_proj": "mtp.fc",
    "nextn.enorm": "mtp.pre_fc_norm_embedding",
    "nextn.hnorm": "mtp.pre_fc_norm_hidden",
    "nextn.shared_head_norm": "mtp.norm",
}


def _architecture(
    model_type: str, class_name: str, names: dict[str, str], **rest: object
) -> Architecture:
    return Architecture(
        model_type=model_type,
        class_name=class_name if "Model" in class_name else f"{class_name}ForCausalLM",
        names=MappingProxyType(names),
        **rest,  # type: ignore[arg-type]
    )


def _hybrid(model_type: str, class_name: str, **rest: object) -> Architecture:
    """Return an architecture of linear and full attention in turns (Qwen3-Next, Qwen3.5)."""
    return _architecture(
        model_type,
        class_name,
        _HYBRID,
        adds_one_to_norms=True,
        guess=_HYBRID_GUESS,
        guess_layer="mtp.layers.0",
        **rest,
    )


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": _architecture("llama", "Llama", _LLAMA, pairs_are_neighbours=True),
        "mixtral": _architecture(
            "mixtral",
            "Mixtral",
            {**_LLAMA, "ffn_gate_inp": "block_sparse_moe.gate"},
            experts=MappingProxyType(_MIXTRAL_EXPERTS),
            pairs_are_neighbours=True,
        ),
        "smollm3": _architecture("smollm3", "SmolLM3", _LLAMA, pairs_are_neighbours=True),
        "qwen2": _architecture("qwen2", "Qwen2", _LLAMA),
        "qwen3": _architecture("qwen3", "Qwen3", _LLAMA),
        "qwen2moe": _architecture(
            "qwen2_moe", "Qwen2Moe", _ROUTED, experts=MappingProxyType(_EXPERTS)
        ),
        "qwen3moe": _architecture(
            "qwen3_moe", "Qwen3Moe", _ROUTED, experts=MappingProxyType(_EXPERTS)
        ),
        "gemma2": _architecture("gemma2", "Gemma2", _GEMMA, adds_one_to_norms=True),
        "gemma3": _architecture("gemma3_text", "Gemma3", _GEMMA, adds_one_to_norms=True),
        "gemma4": _architecture(
            "gemma4_text",
            "Gemma4",
            _GEMMA4,
            bare=_GEMMA4_BARE,
            whole=_GEMMA4_WHOLE,
            layers_differ=True,
        ),
        "phi3": _architecture("phi3", "Phi3", _PHI3),
        "olmo2": _architecture("olmo2", "Olmo2", {**_ATTENTION, **_MLP, **_AFTER}),
        "olmo3": _architecture("olmo3", "Olmo3", {**_ATTENTION, **_MLP, **_AFTER}),
        "gpt-oss": _architecture(
            "gpt_oss", "GptOss", _GPT_OSS, bare={"attn_sinks.weight": "self_attn.sinks"}
        ),
        "glm4": _architecture("glm4", "Glm4", _GLM4),
        "glm4moe": _architecture(
            "glm4_moe",
            "Glm4Moe",
            _GLM4_MOE,
            experts=_EXPERTS,
            bare=_SELECTION_BIAS,
            guess=_GLM4_GUESS,
        ),
        "deepseek2": _architecture("deepseek_v2", "DeepseekV2", _LATENT, experts=_EXPERTS),
        "deepseek3": _architecture(
            "deepseek_v3", "DeepseekV3", _LATENT, experts=_EXPERTS, bare=_SELECTION_BIAS
        ),
        "granite": _architecture("granite", "Granite", _LLAMA, pairs_are_neighbours=True),
        "starcoder2": _architecture("starcoder2", "Starcoder2", _STARCODER2),
        "gpt2": _architecture(
            "gpt2",
            "GPT2LMHeadModel",
            _GPT2,
            whole=_GPT2_WHOLE,
            layer="transformer.h.{layer}",
            transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
        ),
        "bert": _architecture(
            "bert", "BertModel", _BERT, whole=_BERT_WHOLE, layer="encoder.layer.{layer}"
        ),
        "qwen3next": _hybrid("qwen3_next", "Qwen3Next", experts=_EXPERTS),
        "qwen35": _hybrid("qwen3_5", "Qwen3_5"),
        "qwen35moe": _hybrid("qwen3_5_moe", "Qwen3_5Moe", experts=_EXPERTS),
    }
)
"""By ``general.architecture``; ``VARIANTS`` have the names of others."""
VARIANTS: Mapping[str, tuple[str, str, int | None]] = MappingProxyType(
    {
        "mixtral": ("llama", "expert_count", None),
        "olmo3": ("olmo2", "attention.sliding_window", None),
        "deepseek3": ("deepseek2", "expert_gating_func", 2),  # a sigmoid
    }
)
"""What stands in a file under another name: that name, and the setting that tells them apart, by
the value that it has; None: by any but 0."""
_NO_MODELS = MappingProxyType(
    {
        "adapter": "a LoRA adapter: give the PEFT folder that it was made from with --lora",
        "mmproj": "a projector of pictures or sounds (mmproj), which texts do without: name the "
        "model's own .gguf file",
        "imatrix": "a table of what inputs count (imatrix): name the model's own .gguf file",
        "vocab": "a vocabulary without weights: name the model's own .gguf file",
    }
)
"""``general.type`` -> what such a file is, and what to do instead."""


def find_architecture(settings: Mapping[str, object], where: str) -> tuple[str, Architecture]:
    """Return how the settings of an architecture begin, and the architecture.

    Raises:
        UnsupportedModelError: It is not one of those that are read, or the file is no model.
    """
    name = str(settings.get("general.architecture"))
    kind = "mmproj" if name == "clip" else str(settings.get("general.type", "model"))
    if kind in _NO_MODELS:
        what, _, instead = _NO_MODELS[kind].partition(": ")
        raise UnsupportedModelError(
            f"{where} is no model but {what}", hint=f"{instead[:1].upper()}{instead[1:]}."
        )
    for variant, (base, setting, value) in VARIANTS.items():
        told = settings.get(f"{base}.{setting}")
        if name == base and (told if value is None else told == value):
            return name, ARCHITECTURES[variant]
    if name not in ARCHITECTURES or name in VARIANTS:
        raise UnsupportedModelError(
            f"{where} holds a model of the architecture {name[:100]!r}; that is not read from GGUF",
            hint=f"Read are {', '.join(sorted(set(ARCHITECTURES) - set(VARIANTS)))}. Convert the "
            "checkpoint in safetensors that it was made from: zse knows more families there.",
        )
    return name, ARCHITECTURES[name]
