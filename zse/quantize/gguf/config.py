"""The config.json that a GGUF file's settings stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError, UnsupportedModelError
from zse.models.rope import RoPESpec, read_scaling
from zse.quantize.gguf.config_families import OWN_CONFIGS
from zse.quantize.gguf.settings import OwnSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.quantize.gguf.architectures import Architecture
    from zse.quantize.gguf.header import GgufHeader


def config_of(
    header: GgufHeader,
    prefix: str,
    architecture: Architecture,
    where: str,
    rotary_factors: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return what transformers would call the model's configuration.

    Args:
        header: What the file says.
        prefix: How the architecture's own settings begin.
        architecture: Which it is.
        where: The file's name, for errors.
        rotary_factors: What the tensor ``rope_freqs`` divides the frequencies by, if it is there.

    Raises:
        CheckpointError: A setting is missing or of the wrong kind.
        UnsupportedModelError: The rotary embedding is stretched in a way that is not known.
    """
    own = OwnSettings(header, prefix, where, rotary_factors)
    tensors = header.tensors
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{where} has no tensor token_embd.weight")
    heads = own.integer("attention.head_count")
    hidden = own.integer("embedding_length")
    of_layers = own.first if architecture.layers_differ else own.integer
    config: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": of_layers("feed_forward_length", _width_of_experts(own)),
        "num_hidden_layers": own.integer("block_count") - own.integer("nextn_predict_layers", 0),
        "num_attention_heads": heads,
        "num_key_value_heads": of_layers("attention.head_count_kv", heads),
        "rms_norm_eps": own.number("attention.layer_norm_rms_epsilon", _epsilon(own)),
        "max_position_embeddings": own.integer("context_length"),
        "rope_theta": own.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }
    if heads and own.integer("attention.key_length", hidden // heads) * heads != hidden:
        config["head_dim"] = own.integer("attention.key_length")
    if not architecture.layers_differ:
        config |= _scaling(own)
    if architecture.model_type in OWN_CONFIGS:
        config |= OWN_CONFIGS[architecture.model_type](own)
    return config | _special_tokens(header.settings)


def _width_of_experts(own: OwnSettings) -> int | None:
    """Return what stands for the width of an MLP where all layers have experts."""
    name = "expert_feed_forward_length"
    return own.integer(name) if own.has(name) else None


def _epsilon(own: OwnSettings) -> float | None:
    """Return the epsilon of those whose norms subtract the mean."""
    name = "attention.layer_norm_epsilon"
    return own.number(name) if own.has(name) else None


def generation_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation_config.json: which tokens end an answer."""
    ends = [settings.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    found = [token for token in dict.fromkeys(ends) if type(token) is int]
    return {"eos_token_id": found} if found else {}


def pooling_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the 1_Pooling/config.json: how an embedder makes the vector of a text."""
    told = settings.get(f"{settings.get('general.architecture')}.pooling_type")
    modes = {1: "mean_tokens", 2: "cls_token", 3: "lasttoken"}
    return {f"pooling_mode_{modes[told]}": True} if type(told) is int and told in modes else {}


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, int]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    found = {ours: settings.get(f"tokenizer.ggml.{name}_token_id") for name, ours in names.items()}
    return {name: token for name, token in found.items() if type(token) is int}


def _scaling(own: OwnSettings) -> dict[str, Any]:
    """Return how rotary embeddings are stretched, where they are."""
    kind = own.text("rope.scaling.type", "none")
    if own.rotary_factors is not None:
        return {"rope_scaling": _llama3(own, own.rotary_factors)}
    if kind == "none":
        return {}
    factor = own.number("rope.scaling.factor", 1.0)
    if kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}} if factor != 1 else {}
    if kind == "yarn":
        original = own.integer("rope.scaling.original_context_length")
        scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
        for name in ("beta_fast", "beta_slow"):
            if own.has(f"rope.scaling.yarn_{name}"):
                scaling[name] = own.number(f"rope.scaling.yarn_{name}")
        if own.has("rope.scaling.yarn_attn_factor"):
            scaling["attention_factor"] = own.number("rope.scaling.yarn_attn_factor")
        return {"rope_scaling": {**scaling, "original_max_position_embeddings": original}}
    raise UnsupportedModelError(
        f"{own.where} stretches its rotary embedding by {kind[:50]!r}, which is not read from GGUF",
        hint="Convert the checkpoint in safetensors that it was made from.",
    )


def _llama3(own: OwnSettings, factors: Sequence[float]) -> dict[str, Any]:
    """Return the numbers that Llama 3's factors were made of, after making them again."""
    scaling = {
        "rope_type": "llama3",
        "factor": round(max(factors), 4),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = own.number("rope.freq_base", 10000.0)
    _, made = read_scaling({**scaling, "rope_theta": theta}, own.integer("context_length"))
    plain = RoPESpec(theta=theta, rotary_dim=2 * len(factors)).inverse_frequencies()
    stretched = RoPESpec(theta=theta, rotary_dim=2 * len(factors), scaling=made)
    wanted = [one / two for one, two in zip(plain, stretched.inverse_frequencies(), strict=True)]
    if any(abs(one - two) > 1e-3 * one for one, two in zip(wanted, factors, strict=True)):
        raise UnsupportedModelError(
            f"{own.where} stretches its rotary embedding by factors that are not Llama 3's",
            hint="Convert the checkpoint in safetensors that it was made from.",
        )
    return scaling
