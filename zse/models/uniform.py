"""Builds the spec of a decoder whose layers are equal but for their attention window.

The JSON form of the numbers is what a file's header keeps of a model. A number that files did not
have at first is written only where it is not the default, so that what it says stays the same.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, get_args

from zse.errors import FormatError, UnsupportedModelError
from zse.models.layer_spec import Activation, AttentionSpec, LayerSpec, NormKind
from zse.models.parts import Heads, Norms, attention, embedding, head_of, mlp
from zse.models.rope import RoPEScaling, RoPESpec
from zse.models.spec import HeadSpec, ModelSpec
from zse.models.spec_checks import MOST_LAYERS
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

_COUNTS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
    "num_kv_heads", "head_dim", "max_position",
)  # fmt: skip
_NUMBERS = ("rms_norm_eps", "rope_theta", "embedding_scale", "residual_scale", "logit_scale")
_ADDED = frozenset(
    ("output_bias", "mlp_bias", "activation", "norm", "attention_scale",
     "embedding_scale", "residual_scale", "logit_scale")
)  # fmt: skip


@record
class TensorNames:
    """How a family's checkpoints name what a decoder has, where they differ."""

    embedding: str = "model.embed_tokens"
    layer: str = "model.layers"
    mixer_norm: str = "input_layernorm"
    attention: str = "self_attn"
    mlp_norm: str = "post_attention_layernorm"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Gate, then up; up alone where nothing gates."""
    down: str = "mlp.down_proj"
    final_norm: str = "model.norm"


@record
class UniformDecoder:
    """The numbers of a transformer with grouped-query attention and RoPE."""

    family: str
    """Name of its module in ``zse.models.families``."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    """Epsilon of every norm, of whatever kind."""
    rope_theta: float
    rope_scaling: RoPEScaling | None = None
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
    output_bias: bool = False
    """Of what attention adds to the stream."""
    mlp_bias: bool = False
    activation: Activation = "silu"
    norm: NormKind = "rms"
    """Every LayerNorm has a bias."""
    attention_scale: float | None = None
    """None: 1 / sqrt(head_dim)."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        _check_numbers(self)

    def to_json(self) -> dict[str, Any]:
        """Return the header form: plain JSON values, keys as the fields are called."""
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in _ADDED or getattr(self, field.name) != field.default
        }
        values["rope_scaling"] = self.rope_scaling and asdict(self.rope_scaling)
        values["sliding_layers"] = list(self.sliding_layers)
        values["eos_token_ids"] = list(self.eos_token_ids)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> UniformDecoder:
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
                arguments["rope_scaling"] = RoPEScaling(**arguments["rope_scaling"])
            for name in ("sliding_layers", "eos_token_ids"):
                arguments[name] = tuple(int(value) for value in arguments.get(name, ()))
            return cls(**arguments)
        except (TypeError, ValueError, UnsupportedModelError) as error:
            raise FormatError(f"model config cannot be read: {error}") from error

    def spec(self, names: TensorNames) -> ModelSpec:
        """Return the model, its tensors found in checkpoints under ``names``."""
        return _Maker(self, names).model()


class _Maker:
    """Makes the parts of a spec that need both the numbers and the names."""

    def __init__(self, numbers: UniformDecoder, names: TensorNames) -> None:
        self._numbers = numbers
        self._names = names
        self._rope = RoPESpec(
            theta=numbers.rope_theta, rotary_dim=numbers.head_dim, scaling=numbers.rope_scaling
        )
        self._norms = Norms(epsilon=numbers.rms_norm_eps, kind=numbers.norm)
        self._windowed = frozenset(numbers.sliding_layers)

    def model(self) -> ModelSpec:
        numbers, names, tied = self._numbers, self._names, self._numbers.tie_word_embeddings
        table = embedding(
            names.embedding,
            numbers.vocab_size,
            numbers.hidden_size,
            tied=tied,
            scale=numbers.embedding_scale,
        )
        return ModelSpec(
            family=numbers.family,
            vocab_size=numbers.vocab_size,
            hidden_size=numbers.hidden_size,
            max_position=numbers.max_position,
            embedding=table,
            layers=tuple(self._layer(index) for index in range(numbers.num_layers)),
            head=HeadSpec(
                norm=self._norms.norm("final_norm", names.final_norm, numbers.hidden_size),
                weight=head_of(table, tied=tied),
                logit_scale=numbers.logit_scale,
            ),
            bos_token_id=numbers.bos_token_id,
            eos_token_ids=numbers.eos_token_ids,
            dtype=numbers.dtype,
            header=numbers.to_json(),
        )

    def _layer(self, index: int) -> LayerSpec:
        numbers, names, norm = self._numbers, self._names, self._norms.norm
        ours, theirs, hidden = f"layers.{index}", f"{names.layer}.{index}", numbers.hidden_size
        return LayerSpec(
            index=index,
            mixer_norm=norm(f"{ours}.attn_norm", f"{theirs}.{names.mixer_norm}", hidden),
            mixer=self._attention(index, ours, f"{theirs}.{names.attention}"),
            mlp_norm=norm(f"{ours}.mlp_norm", f"{theirs}.{names.mlp_norm}", hidden),
            mlp=mlp(
                ours,
                [f"{theirs}.{name}" for name in names.up],
                f"{theirs}.{names.down}",
                hidden=hidden,
                width=numbers.intermediate_size,
                activation=numbers.activation,
                bias=numbers.mlp_bias,
            ),
            residual_scale=numbers.residual_scale,
        )

    def _attention(self, index: int, ours: str, theirs: str) -> AttentionSpec:
        numbers = self._numbers
        return attention(
            ours,
            theirs,
            hidden=numbers.hidden_size,
            heads=Heads(
                num_heads=numbers.num_heads,
                num_kv_heads=numbers.num_kv_heads,
                head_dim=numbers.head_dim,
                scale=numbers.attention_scale,
                qkv_bias=numbers.qkv_bias,
                output_bias=numbers.output_bias,
            ),
            rope=self._rope,
            window=numbers.sliding_window if index in self._windowed else None,
            head_norms=self._norms if numbers.qk_norm else None,
        )


def _check_numbers(numbers: UniformDecoder) -> None:
    """Refuse numbers that no model can have; they come from a file."""
    for name in _COUNTS:
        value = getattr(numbers, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UnsupportedModelError(f"{name} is {value!r}; expected a whole number above 0")
    for name in _NUMBERS:
        value = getattr(numbers, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UnsupportedModelError(f"{name} is {value!r}; expected a number")
    for name, choices in (("activation", get_args(Activation)), ("norm", get_args(NormKind))):
        if (value := getattr(numbers, name)) not in choices:
            raise UnsupportedModelError(f"{name} is {value!r}; expected {', '.join(choices)}")
    if numbers.num_layers > MOST_LAYERS:
        raise UnsupportedModelError(
            f"num_layers is {numbers.num_layers}; expected at most {MOST_LAYERS}"
        )
    if numbers.num_heads % numbers.num_kv_heads:
        raise UnsupportedModelError(
            f"{numbers.num_heads} query heads do not divide among {numbers.num_kv_heads} KV heads"
        )
    if numbers.head_dim % 2:
        raise UnsupportedModelError(f"head_dim is {numbers.head_dim}; RoPE needs an even number")
    window = numbers.sliding_window
    if numbers.sliding_layers and (not isinstance(window, int) or window < 1):
        raise UnsupportedModelError(
            f"sliding_window is {window!r} but layers {numbers.sliding_layers} use it"
        )
