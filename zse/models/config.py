"""What a model is: the numbers that a program over the operations needs, and nothing else.

``ModelConfig.from_huggingface`` is the only reader of a checkpoint's ``config.json``. Every option
that changes the arithmetic is either represented here or refused by name: an option that is
skipped in silence would give wrong answers.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from zse.errors import FormatError, UnsupportedModelError
from zse.models.rope import RopeScaling, read_rope
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FAMILY_BY_ARCHITECTURE = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_DTYPE_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_HINT = (
    "Supported: " + ", ".join(FAMILY_BY_ARCHITECTURE) + ". Choose a model of one of these "
    "architectures (Llama 2 and 3, Mistral, Qwen2, Qwen2.5, Qwen3 and what is tuned from them), "
    "or ask for this one in an issue, by the word architectures of its config.json."
)
_OPTION_HINT = (
    "The architecture is supported, this option of it is not: leaving it out would change the "
    "answers. Choose a model without it, or ask for it in an issue."
)


@record
class ModelConfig:
    """A decoder-only transformer with RMSNorm, RoPE, grouped-query attention and SwiGLU."""

    family: str
    """One of llama, mistral, qwen2, qwen3."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    max_position: int = 2048
    """Longest sequence in tokens."""
    sliding_window: int | None = None
    """Tokens that a windowed layer sees, itself included; None when no layer has a window."""
    sliding_layers: tuple[int, ...] = ()
    """Layers that use the window, ascending; empty when ``sliding_window`` is None."""
    qkv_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "bf16"
    """Type of the checkpoint's weights: fp16, bf16 or fp32."""

    def __post_init__(self) -> None:
        _check_shape(self)

    @property
    def qkv_rows(self) -> int:
        """Rows of the joined query, key and value matrix."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def window_of_layer(self, layer: int) -> int | None:
        """Return how many tokens this layer sees, or None when it sees all of them."""
        return self.sliding_window if layer in self.sliding_layers else None

    @classmethod
    def from_huggingface(
        cls,
        config_json: Mapping[str, Any],
        generation_config: Mapping[str, Any] | None = None,
    ) -> ModelConfig:
        """Read a checkpoint's ``config.json`` (transformers 4 or 5 spelling).

        Args:
            config_json: The parsed ``config.json``.
            generation_config: The parsed ``generation_config.json``; its token ids win.

        Raises:
            UnsupportedModelError: The architecture or one of its options is not supported, or a
                value that is needed is missing or has no meaning.
        """
        family = _family(config_json)
        _refuse_unsupported(family, config_json)
        hidden_size = _integer(config_json, "hidden_size")
        num_layers = _integer(config_json, "num_hidden_layers")
        num_heads = _integer(config_json, "num_attention_heads")
        max_position = _integer(config_json, "max_position_embeddings", 2048)
        head_dim = _integer(config_json, "head_dim", hidden_size // max(num_heads, 1))
        rope_theta, rope_scaling = read_rope(config_json, max_position, head_dim)
        sliding_window, sliding_layers = _windows(family, config_json, num_layers)
        bos_ids, eos_ids = _special_ids(config_json, generation_config or {})
        dtype = config_json.get("dtype", config_json.get("torch_dtype")) or "float32"
        if dtype not in _DTYPE_NAMES:
            raise UnsupportedModelError(
                f"dtype is {dtype!r}; expected one of {', '.join(_DTYPE_NAMES)}",
                hint="Save the checkpoint in float16, bfloat16 or float32 first.",
            )
        return cls(
            family=family,
            vocab_size=_integer(config_json, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_integer(config_json, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=_integer(config_json, "num_key_value_heads", num_heads),
            head_dim=head_dim,
            rms_norm_eps=_number(config_json, "rms_norm_eps", 1e-6),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            max_position=max_position,
            sliding_window=sliding_window,
            sliding_layers=sliding_layers,
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            tie_word_embeddings=bool(config_json.get("tie_word_embeddings", False)),
            bos_token_id=bos_ids[0] if bos_ids else None,
            eos_token_ids=eos_ids,
            dtype=_DTYPE_NAMES[dtype],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the header form: plain JSON values, keys as the fields are called."""
        values = asdict(self)
        values["sliding_layers"] = list(self.sliding_layers)
        values["eos_token_ids"] = list(self.eos_token_ids)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Read the header form back.

        Raises:
            FormatError: A field is missing, unknown or of the wrong kind.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise FormatError(f"model config has unknown fields: {', '.join(unknown)}")
        arguments = dict(values)
        try:
            if arguments.get("rope_scaling") is not None:
                arguments["rope_scaling"] = RopeScaling(**arguments["rope_scaling"])
            for name in ("sliding_layers", "eos_token_ids"):
                arguments[name] = tuple(int(value) for value in arguments.get(name, ()))
            return cls(**arguments)
        except (TypeError, ValueError, UnsupportedModelError) as error:
            raise FormatError(f"model config cannot be read: {error}") from error


def _check_shape(config: ModelConfig) -> None:
    """Refuse numbers that no model can have; they come from a file."""
    counts = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
              "num_kv_heads", "head_dim", "max_position")  # fmt: skip
    for name in counts:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UnsupportedModelError(f"{name} is {value!r}; expected a whole number above 0")
    if config.family not in FAMILY_BY_ARCHITECTURE.values():
        raise UnsupportedModelError(f"model family {config.family!r} is not supported", hint=_HINT)
    if config.num_heads % config.num_kv_heads:
        raise UnsupportedModelError(
            f"{config.num_heads} query heads do not divide among {config.num_kv_heads} KV heads"
        )
    if config.head_dim % 2:
        raise UnsupportedModelError(f"head_dim is {config.head_dim}; RoPE needs an even number")
    if config.sliding_layers and (config.sliding_window is None or config.sliding_window < 1):
        raise UnsupportedModelError(
            f"sliding_window is {config.sliding_window!r} but layers {config.sliding_layers} use it"
        )


def _family(config_json: Mapping[str, Any]) -> str:
    architectures = config_json.get("architectures") or []
    for architecture in architectures:
        if architecture in FAMILY_BY_ARCHITECTURE:
            return FAMILY_BY_ARCHITECTURE[architecture]
    model_type = config_json.get("model_type")
    if not architectures and model_type in FAMILY_BY_ARCHITECTURE.values():
        return str(model_type)
    found = ", ".join(map(str, architectures)) or f"model_type {model_type!r}"
    raise UnsupportedModelError(f"architecture {found} is not supported", hint=_HINT)


def _refuse_unsupported(family: str, config_json: Mapping[str, Any]) -> None:
    if (quantized := config_json.get("quantization_config")) is not None:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
        raise UnsupportedModelError(
            f"the checkpoint is quantized already (quantization_config: {str(method)[:100]!r})",
            hint="Convert the checkpoint that was not quantized.",
        )
    accepted: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu", "swish"),
        "mlp_bias": (False, None),
    }
    if family in ("llama", "qwen3"):
        accepted["attention_bias"] = (False, None)
    for name, values in accepted.items():
        if name in config_json and config_json[name] not in values:
            raise UnsupportedModelError(
                f"{name}={str(config_json[name])[:100]!r} is not supported in a {family} model; "
                f"expected {values[0]!r}",
                hint=_OPTION_HINT,
            )


def _windows(
    family: str, config_json: Mapping[str, Any], num_layers: int
) -> tuple[int | None, tuple[int, ...]]:
    """Return the window in tokens and the layers that use it."""
    window = config_json.get("sliding_window")
    qwen = family in ("qwen2", "qwen3")
    if window is None or family == "llama" or (qwen and not config_json.get("use_sliding_window")):
        return None, ()
    layer_types: Sequence[str] | None = config_json.get("layer_types")
    if family == "mistral":
        layers: Iterable[int] = range(num_layers)
    elif layer_types is not None:
        known = {"full_attention", "sliding_attention"}
        if len(layer_types) != num_layers or set(layer_types) - known:
            raise UnsupportedModelError(
                f"layer_types is {list(layer_types)!r}; expected {num_layers} of {sorted(known)}"
            )
        layers = (i for i, kind in enumerate(layer_types) if kind == "sliding_attention")
    else:
        layers = range(_integer(config_json, "max_window_layers", 28), num_layers)
    chosen = tuple(layers)
    return (int(window), chosen) if chosen else (None, ())


def _special_ids(
    config_json: Mapping[str, Any], generation_config: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found = []
    for name in ("bos_token_id", "eos_token_id"):
        value = generation_config.get(name)
        value = config_json.get(name) if value is None else value
        values = value if isinstance(value, list) else [] if value is None else [value]
        found.append(tuple(int(item) for item in values))
    return found[0], found[1]


def _integer(config_json: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config_json.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnsupportedModelError(f"{name} is {value!r} in config.json; expected a whole number")
    return value


def _number(config_json: Mapping[str, Any], name: str, default: float) -> float:
    value = config_json.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UnsupportedModelError(f"{name} is {value!r} in config.json; expected a number")
    return float(value)
