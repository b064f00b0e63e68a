"""Reading a checkpoint's ``config.json``: what its keys mean in every family.

Every option that changes the arithmetic is either represented in the spec or refused by name: an
option that is skipped in silence would give wrong answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.errors import UnsupportedModelError
from zse.models.rope import read_rope
from zse.models.uniform import UniformDecoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zse.models.spec import Activation

_DTYPE_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}
_OPTION_HINT = (
    "The architecture is supported, this option of it is not: leaving it out would change the "
    "answers. Choose a model without it, or ask for it in an issue."
)


class ConfigJSON:
    """One parsed ``config.json``, in the spelling of transformers 4 or 5.

    Raises:
        UnsupportedModelError: Its weights are quantized already.
    """

    def __init__(
        self, family: str, values: Mapping[str, Any], generation: Mapping[str, Any] | None
    ) -> None:
        self._family = family
        self._values = values
        self._generation = generation or {}
        if (quantized := values.get("quantization_config")) is not None:
            method = quantized.get("quant_method") if isinstance(quantized, dict) else None
            raise UnsupportedModelError(
                f"the checkpoint is quantized already (quantization_config: {str(method)[:100]!r})",
                hint="Convert the checkpoint that was not quantized.",
            )

    def decoder(
        self, *, windows: tuple[int | None, tuple[int, ...]] = (None, ()), **own: Any
    ) -> UniformDecoder:
        """Return the numbers that every family spells alike, and a family's ``own``.

        Raises:
            UnsupportedModelError: A value that is needed is missing or has no meaning.
        """
        hidden_size = self.integer("hidden_size")
        num_heads = self.integer("num_attention_heads")
        max_position = self.integer("max_position_embeddings", 2048)
        head_dim = self.integer("head_dim", hidden_size // max(num_heads, 1))
        rope_theta, rope_scaling = read_rope(self._values, max_position, head_dim)
        bos_ids = self._token_ids("bos_token_id")
        numbers: dict[str, Any] = {
            "family": self._family,
            "vocab_size": self.integer("vocab_size"),
            "hidden_size": hidden_size,
            "intermediate_size": self.integer("intermediate_size"),
            "num_layers": self.integer("num_hidden_layers"),
            "num_heads": num_heads,
            "num_kv_heads": self.integer("num_key_value_heads", num_heads),
            "head_dim": head_dim,
            "rms_norm_eps": self.number("rms_norm_eps", 1e-6),
            "rope_theta": rope_theta,
            "rope_scaling": rope_scaling,
            "max_position": max_position,
            "sliding_window": windows[0],
            "sliding_layers": windows[1],
            "tie_word_embeddings": self.flag("tie_word_embeddings"),
            "bos_token_id": bos_ids[0] if bos_ids else None,
            "eos_token_ids": self._token_ids("eos_token_id"),
            "dtype": self._dtype(),
            "activation": self.activation("silu"),
        }
        return UniformDecoder(**(numbers | own))

    def expect(self, name: str, *accepted: Any) -> None:
        """Refuse an option that has a value which nothing here computes."""
        if name in self._values and self._values[name] not in accepted:
            words = " or ".join(repr(value) for value in accepted if value is not None)
            raise UnsupportedModelError(
                f"{name}={str(self._values[name])[:100]!r} is not supported in a {self._family} "
                f"model; expected {words}",
                hint=_OPTION_HINT,
            )

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number; the default where it is absent or null."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnsupportedModelError(
                f"{name} is {value!r} in config.json; expected a whole number"
            )
        return value

    def number(self, name: str, default: float) -> float:
        value = self._values.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UnsupportedModelError(f"{name} is {value!r} in config.json; expected a number")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        return bool(self._values.get(name, default))

    def activation(self, default: str) -> Activation:
        """Return what bends the MLP, by a name of transformers."""
        self.expect("hidden_act", *_ACTIVATIONS)
        return _ACTIVATIONS[self._values.get("hidden_act", default)]

    def window_everywhere(self) -> tuple[int | None, tuple[int, ...]]:
        """Return the window of a model whose layers all have it."""
        return self._windows(range(self.integer("num_hidden_layers")))

    def window_where_switched_on(self) -> tuple[int | None, tuple[int, ...]]:
        """Return the window, and the layers that have it by type or by number."""
        if not self._values.get("use_sliding_window"):
            return None, ()
        num_layers = self.integer("num_hidden_layers")
        layer_types: Sequence[str] | None = self._values.get("layer_types")
        if layer_types is None:
            return self._windows(range(self.integer("max_window_layers", 28), num_layers))
        known = {"full_attention", "sliding_attention"}
        if len(layer_types) != num_layers or set(layer_types) - known:
            raise UnsupportedModelError(
                f"layer_types is {list(layer_types)!r}; expected {num_layers} of {sorted(known)}"
            )
        return self._windows(i for i, kind in enumerate(layer_types) if kind == "sliding_attention")

    def _windows(self, layers: Iterable[int]) -> tuple[int | None, tuple[int, ...]]:
        window, chosen = self._values.get("sliding_window"), tuple(layers)
        return (int(window), chosen) if window is not None and chosen else (None, ())

    def _token_ids(self, name: str) -> tuple[int, ...]:
        value = self._generation.get(name)
        value = self._values.get(name) if value is None else value
        values = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(int(item) for item in values)

    def _dtype(self) -> str:
        dtype = self._values.get("dtype", self._values.get("torch_dtype")) or "float32"
        if dtype not in _DTYPE_NAMES:
            raise UnsupportedModelError(
                f"dtype is {dtype!r}; expected one of {', '.join(_DTYPE_NAMES)}",
                hint="Save the checkpoint in float16, bfloat16 or float32 first.",
            )
        return _DTYPE_NAMES[dtype]
