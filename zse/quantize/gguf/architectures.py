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
    pairs_are_neighbours: bool = False
    """The rows of queries and keys are in another order."""
    adds_one_to_norms: bool = False


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


def _architecture(
    model_type: str, class_name: str, names: dict[str, str], **rest: object
) -> Architecture:
    return Architecture(
        model_type=model_type,
        class_name=f"{class_name}ForCausalLM",
        names=MappingProxyType(names),
        **rest,  # type: ignore[arg-type]
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
        "phi3": _architecture("phi3", "Phi3", _PHI3),
        "olmo2": _architecture("olmo2", "Olmo2", {**_ATTENTION, **_MLP, **_AFTER}),
    }
)
"""By ``general.architecture``; a ``llama`` with experts is a ``mixtral``."""


def find_architecture(settings: Mapping[str, object], where: str) -> tuple[str, Architecture]:
    """Return how the settings of an architecture begin, and the architecture.

    Raises:
        UnsupportedModelError: It is not one of those that are read.
    """
    named = settings.get("general.architecture")
    name = str(named)
    if name == "llama" and settings.get("llama.expert_count"):
        return name, ARCHITECTURES["mixtral"]
    if name not in ARCHITECTURES or name == "mixtral":
        raise UnsupportedModelError(
            f"{where} holds a model of the architecture {name[:100]!r}; that is not read from GGUF",
            hint=f"Read are {', '.join(sorted(set(ARCHITECTURES) - {'mixtral'}))}. Convert the "
            "checkpoint in safetensors that it was made from: zse knows more families there.",
        )
    return name, ARCHITECTURES[name]
