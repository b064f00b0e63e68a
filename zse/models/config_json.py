"""Reading a checkpoint's ``config.json``: what its keys mean in every family.

Every option that changes the arithmetic is either represented in the spec or refused by name: an
option that is skipped in silence would give wrong answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.errors import UnsupportedModelError
from zse.models.parts import Heads
from zse.models.rope import RoPESpec, read_by_length, read_rope, read_scaling, rope_values
from zse.models.spec_checks import MOST_LAYERS
from zse.models.uniform import UniformDecoder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from zse.models.layer_spec import Activation

OF_THE_WHOLE = (
    "architectures", "bos_token_id", "eos_token_id", "dtype", "torch_dtype", "tie_word_embeddings"
)  # fmt: skip
"""Said of a model of several parts, and true of its text."""
_ROPE = ("rope_scaling", "rope_parameters", "rope_theta")
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

    Args:
        family: The one that reads it.
        values: The file.
        generation: ``generation_config.json``.
        packings: Schemes that the weights of its checkpoints may have already.

    Raises:
        UnsupportedModelError: Its weights are quantized already, and not so.
    """

    def __init__(
        self,
        family: str,
        values: Mapping[str, Any],
        generation: Mapping[str, Any] | None,
        packings: Collection[str] = (),
    ) -> None:
        self._family = family
        self._values = values
        self._generation = generation or {}
        self._read: dict[str, Any] = {}
        """What was asked for and is there: all that the model depends on."""
        self._packings = packings
        self._packing = ""
        if (quantized := values.get("quantization_config")) is not None:
            method = quantized.get("quant_method") if isinstance(quantized, dict) else None
            if method not in packings:
                raise UnsupportedModelError(
                    "the checkpoint is quantized already "
                    f"(quantization_config: {str(method)[:100]!r})",
                    hint="Convert the one that was not quantized, or one in GPTQ, AWQ, FP8, "
                    "compressed-tensors or bitsandbytes.",
                )
            self._packing = str(method)

    @property
    def family(self) -> str:
        return self._family

    def header(self) -> dict[str, Any]:
        """Return what a file keeps of a model: the values that its family read."""
        return {"family": self._family, "config": self._read}

    def nested(self, name: str) -> ConfigJSON:
        """Return the configuration of one part of a model: of its text, where it has others.

        A header has its values where the checkpoint had the part.
        """
        inner = self._values.get(name)
        if not isinstance(inner, dict):
            return self
        outer = {key: value for key, value in self._values.items() if key in OF_THE_WHOLE}
        return ConfigJSON(self._family, {**inner, **outer}, self._generation, self._packings)

    def value(self, name: str, default: Any = None) -> Any:
        """Return a value as it stands; the default where it is absent or null."""
        value = self._values.get(name)
        if value is None:
            return default
        self._read[name] = value
        return value

    def packing(self) -> str:
        """Return the scheme that weights of the checkpoint have already; empty for none."""
        self.value("quantization_config")
        return self._packing

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
        if name in self._values and self.value(name) not in accepted:
            words = " or ".join(repr(value) for value in accepted if value is not None)
            raise UnsupportedModelError(
                f"{name}={str(self._values[name])[:100]!r} is not supported in a {self._family} "
                f"model; expected {words}",
                hint=_OPTION_HINT,
            )

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number; the default where it is absent or null."""
        value = self.value(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnsupportedModelError(
                f"{name} is {value!r} in config.json; expected a whole number"
            )
        return value

    def integer_or_null(self, name: str, default: int) -> int | None:
        """Return a whole number; None where it is null, the default where it is absent."""
        if name in self._values and self._values[name] is None:
            self._read[name] = None
            return None
        return self.integer(name, default)

    def count_of_experts(self) -> int:
        """Return how many experts a layer has, by whichever name it goes."""
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        return self.integer(next((n for n in names if self._values.get(n) is not None), names[0]))

    def number(self, name: str, default: float) -> float:
        value = self.value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UnsupportedModelError(f"{name} is {value!r} in config.json; expected a number")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        return bool(self.value(name, default))

    def activation(self, default: str, name: str = "hidden_act") -> Activation:
        """Return what bends the MLP, by a name of transformers."""
        self.expect(name, *_ACTIVATIONS)
        return _ACTIVATIONS[self.value(name, default)]

    def bound(self, name: str) -> float | None:
        """Return a soft cap; None where there is none.

        Raises:
            UnsupportedModelError: It is no number above zero.
        """
        if self.value(name) is None:
            return None
        bound = self.number(name, 0.0)
        if not bound > 0:
            raise UnsupportedModelError(f"{name} is {bound!r}; expected a number above 0")
        return bound

    def alternating_layers(self, *, every: int) -> Sequence[str]:
        """Return the kind of each layer: without a window is, if nothing is told, each ``every``.

        Raises:
            UnsupportedModelError: A kind is not known, or there are not as many as layers.
        """
        told = self.layer_types("full_attention", "sliding_attention")
        return told or [
            "sliding_attention" if (index + 1) % max(every, 1) else "full_attention"
            for index in range(self.num_layers())
        ]

    def window_everywhere(self) -> tuple[int | None, tuple[int, ...]]:
        """Return the window of a model whose layers all have it."""
        return self._windows(range(self.num_layers()))

    def window_where_switched_on(self) -> tuple[int | None, tuple[int, ...]]:
        """Return the window, and the layers that have it by type or by number."""
        if not self._values.get("use_sliding_window"):
            return None, ()
        num_layers = self.num_layers()
        layer_types = self.layer_types("full_attention", "sliding_attention")
        if layer_types is None:
            return self._windows(range(self.integer("max_window_layers", 28), num_layers))
        return self._windows(i for i, kind in enumerate(layer_types) if kind == "sliding_attention")

    def layer_types(self, *known: str) -> Sequence[str] | None:
        """Return the kind of each layer, one of those known; None where they are not told.

        Raises:
            UnsupportedModelError: A kind is not known, or there are not as many as layers.
        """
        kinds = self.value("layer_types")
        if kinds is None:
            return None
        count = self.integer("num_hidden_layers")
        if not isinstance(kinds, list) or len(kinds) != count or not set(kinds) <= set(known):
            raise UnsupportedModelError(
                f"layer_types is {str(kinds)[:200]}; expected {count} of {', '.join(known)}",
                hint=_OPTION_HINT,
            )
        return kinds

    def rope(self, head_dim: int, *, kind: str | None = None, partial: float = 1.0) -> RoPESpec:
        """Return the rotation of heads.

        Args:
            head_dim: Columns of a head.
            kind: Kind of layer whose rotation it is, where a checkpoint has several.
            partial: Part of a head that turns, where the checkpoint does not say.

        Raises:
            UnsupportedModelError: Its scaling is not known, or a part of a head has no meaning.
        """
        max_position = self.integer("max_position_embeddings", 2048)
        for name in _ROPE:
            self.value(name)
        values = rope_values(self._values, kind)
        share = values.get("partial_rotary_factor") or self.number("partial_rotary_factor", partial)
        is_by_length = "long_factor" in values
        told = {**values, "rope_type": "default"} if is_by_length else values
        theta, scaling = read_scaling(told, max_position)
        if scaling is not None and scaling.kind == "proportional":
            share = 1.0  # of the frequencies, not of the head
        columns = int(head_dim * float(share))
        if not 0 < columns <= head_dim or columns % 2:
            raise UnsupportedModelError(
                f"partial_rotary_factor {share!r} of heads of {head_dim} columns is {columns}; "
                "expected an even number of them"
            )
        by_length = None
        if is_by_length:
            named = "original_max_position_embeddings"
            original = self.integer(named, values.get(named) or 4096)
            by_length = read_by_length(values, original, max_position, columns // 2)
        return RoPESpec(theta=theta, rotary_dim=columns, scaling=scaling, by_length=by_length)

    def heads(
        self, *, scale: float | None = None, qkv_bias: bool = False, output_bias: bool = False
    ) -> Heads:
        """Return the numbers of attention that every family spells alike."""
        num_heads = self.integer("num_attention_heads")
        return Heads(
            num_heads=num_heads,
            num_kv_heads=self.integer("num_key_value_heads", num_heads),
            head_dim=self.integer("head_dim", self.integer("hidden_size") // max(num_heads, 1)),
            scale=scale,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
        )

    def flags(self, name: str, count: int) -> list[bool] | None:
        """Return a flag of each layer; None where they are not told.

        Raises:
            UnsupportedModelError: There are not as many as layers.
        """
        value = self.value(name)
        if value is not None and (not isinstance(value, list) or len(value) != count):
            raise UnsupportedModelError(f"{name} is {str(value)[:200]}; expected {count} flags")
        return value if value is None else [bool(one) for one in value]

    def num_layers(self, name: str = "num_hidden_layers") -> int:
        count = self.integer(name)
        if not 1 <= count <= MOST_LAYERS:
            raise UnsupportedModelError(f"{name} is {count}; expected 1 to {MOST_LAYERS}")
        return count

    def dense_by_step(self) -> tuple[int, ...]:
        """Return the layers of a Qwen mixture that have one MLP in place of experts."""
        step, named = self.integer("decoder_sparse_step", 1), self.value("mlp_only_layers", [])
        if not isinstance(named, list):
            raise UnsupportedModelError(f"mlp_only_layers is {named!r}; expected a list of layers")
        return tuple(
            index
            for index in range(self.num_layers())
            if index in named or step < 1 or (index + 1) % step
        )

    def local_rope(self, head_dim: int) -> RoPESpec:
        """Return the rotation of layers with a window, in either spelling of Gemma 3."""
        if (theta := self.value("rope_local_base_freq")) is not None:
            return RoPESpec(theta=float(theta), rotary_dim=head_dim)
        return self.rope(head_dim, kind="sliding_attention")

    def ends(self) -> dict[str, Any]:
        """Return the fields of a spec that say where texts begin and end, and the dtype."""
        bos_ids = self._token_ids("bos_token_id")
        return {
            "bos_token_id": bos_ids[0] if bos_ids else None,
            "eos_token_ids": self._token_ids("eos_token_id"),
            "dtype": self._dtype(),
        }

    def _windows(self, layers: Iterable[int]) -> tuple[int | None, tuple[int, ...]]:
        chosen = tuple(layers)
        if not chosen or self.value("sliding_window") is None:
            return None, ()
        return self.integer("sliding_window"), chosen

    def _token_ids(self, name: str) -> tuple[int, ...]:
        value = self._generation.get(name)
        value = self._values.get(name) if value is None else value
        if value is not None:
            self._read[name] = value
        values = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(int(item) for item in values)

    def _dtype(self) -> str:
        dtype = self.value("dtype") or self.value("torch_dtype") or "float32"
        if not isinstance(dtype, str) or dtype not in _DTYPE_NAMES:
            raise UnsupportedModelError(
                f"dtype is {dtype!r}; expected one of {', '.join(_DTYPE_NAMES)}",
                hint="Save the checkpoint in float16, bfloat16 or float32 first.",
            )
        return _DTYPE_NAMES[dtype]
