"""The config.json that a GGUF file's settings stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError, UnsupportedModelError
from zse.models.rope import RoPESpec, read_scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zse.quantize.gguf.architectures import Architecture
    from zse.quantize.gguf.header import GgufHeader


class _Settings:
    """An architecture's own settings, read with their kinds checked."""

    def __init__(
        self, header: GgufHeader, prefix: str, where: str, rotary_factors: Sequence[float] | None
    ) -> None:
        self.header = header
        self.where = where
        self.rotary_factors = rotary_factors
        self._settings = header.settings
        self._prefix = prefix

    def has(self, name: str) -> bool:
        return f"{self._prefix}.{name}" in self._settings

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        # Some converters give a number for each layer; equal ones are one.
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]
        if type(value) is not int:
            raise self._wrong(name, value, "a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if type(value) not in (int, float):
            raise self._wrong(name, value, "a number")
        return float(value)

    def text(self, name: str, default: str) -> str:
        return str(self._value(name, default))

    def _value(self, name: str, default: Any) -> Any:
        value = self._settings.get(f"{self._prefix}.{name}", default)
        if value is None:
            raise CheckpointError(
                f"{self.where} does not say {self._prefix}.{name}",
                hint="Download the file again, or convert the checkpoint that it was made from.",
            )
        return value

    def _wrong(self, name: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{self.where}: {self._prefix}.{name} is {str(value)[:80]!r}; expected {expected}"
        )


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
    own = _Settings(header, prefix, where, rotary_factors)
    tensors = header.tensors
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{where} has no tensor token_embd.weight")
    heads = own.integer("attention.head_count")
    hidden = own.integer("embedding_length")
    config: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": own.integer("feed_forward_length"),
        "num_hidden_layers": own.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": own.integer("attention.head_count_kv", heads),
        "rms_norm_eps": own.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": own.integer("context_length"),
        "rope_theta": own.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }
    if heads and own.integer("attention.key_length", hidden // heads) * heads != hidden:
        config["head_dim"] = own.integer("attention.key_length")
    config |= _scaling(own)
    if architecture.model_type in _OWN:
        config |= _OWN[architecture.model_type](own)
    return config | _special_tokens(header.settings)


def generation_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation_config.json: which tokens end an answer."""
    ends = [settings.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    found = [token for token in dict.fromkeys(ends) if type(token) is int]
    return {"eos_token_id": found} if found else {}


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, int]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    found = {ours: settings.get(f"tokenizer.ggml.{name}_token_id") for name, ours in names.items()}
    return {name: token for name, token in found.items() if type(token) is int}


def _scaling(own: _Settings) -> dict[str, Any]:
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
        scaling = {"rope_type": "yarn", "factor": factor}
        return {"rope_scaling": {**scaling, "original_max_position_embeddings": original}}
    raise UnsupportedModelError(
        f"{own.where} stretches its rotary embedding by {kind[:50]!r}, which is not read from GGUF",
        hint="Convert the checkpoint in safetensors that it was made from.",
    )


def _llama3(own: _Settings, factors: Sequence[float]) -> dict[str, Any]:
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


def _mixture(own: _Settings) -> dict[str, Any]:
    width = own.integer("expert_feed_forward_length", own.integer("feed_forward_length"))
    return {
        "num_experts": own.integer("expert_count"),
        "num_experts_per_tok": own.integer("expert_used_count"),
        "moe_intermediate_size": width,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2_moe(own: _Settings) -> dict[str, Any]:
    shared = own.header.tensors.get("blk.0.ffn_up_shexp.weight")
    if shared is None:
        raise CheckpointError(f"{own.where} has no tensor blk.0.ffn_up_shexp.weight")
    return {
        **_mixture(own),
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": shared.shape[0],
    }


def _gemma(own: _Settings, *, largest_layers: int) -> dict[str, Any]:
    """Gemma's queries are scaled by the width of a head, in the largest by that of all."""
    heads = own.integer("attention.head_count")
    width = own.integer("attention.key_length")
    if own.integer("block_count") == largest_layers:
        width = own.integer("embedding_length") // heads
    return {
        "head_dim": own.integer("attention.key_length"),
        "query_pre_attn_scalar": width,
        "sliding_window": own.integer("attention.sliding_window"),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _gemma2(own: _Settings) -> dict[str, Any]:
    return {
        **_gemma(own, largest_layers=46),
        "attn_logit_softcapping": own.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": own.number("final_logit_softcapping", 30.0),
    }


def _gemma3(own: _Settings) -> dict[str, Any]:
    pattern = 6
    return {
        **_gemma(own, largest_layers=62),
        "rope_local_base_freq": own.number("rope.freq_base_swa", 10000.0),
        "layer_types": [
            "sliding_attention" if (index + 1) % pattern else "full_attention"
            for index in range(own.integer("block_count"))
        ],
    }


_OWN: Mapping[str, Callable[[_Settings], dict[str, Any]]] = {
    "mixtral": lambda own: {
        "num_local_experts": own.integer("expert_count"),
        "num_experts_per_tok": own.integer("expert_used_count"),
    },
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": lambda own: {**_mixture(own), "norm_topk_prob": True},
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "smollm3": lambda _own: {"no_rope_layer_interval": 4},
}
"""What an architecture has besides."""
