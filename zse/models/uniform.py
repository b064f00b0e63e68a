"""A decoder whose layers differ by nothing but their window: its numbers, and the spec they give.

The JSON form of the numbers is what a file's header keeps of a model. A number that files did not
have at first is written only where it is not the default, so that what it says stays the same.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, get_args

from zse.errors import FormatError, UnsupportedModelError
from zse.models.rope import RoPEScaling, RoPESpec
from zse.models.spec import (
    Activation,
    AttentionSpec,
    EmbeddingSpec,
    HeadSpec,
    LayerSpec,
    LinearSpec,
    MLPSpec,
    ModelSpec,
    NormKind,
    NormSpec,
    WeightSpec,
)
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.spec import Shard, WeightKind

_MOST_LAYERS = 1024
"""More than any model has; a file that claims more would be believed for gigabytes."""
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
        self._windowed = frozenset(numbers.sliding_layers)

    def model(self) -> ModelSpec:
        numbers, names = self._numbers, self._names
        table = (numbers.vocab_size, numbers.hidden_size)
        # Tied, it is stored the way the head is: its rows are converted when they are gathered.
        kind: WeightKind = "head" if numbers.tie_word_embeddings else "embed"
        embedding = _weight("embed.weight", kind, [f"{names.embedding}.weight"], [table], "rows")
        head = embedding
        if not numbers.tie_word_embeddings:
            head = _weight("lm_head.weight", "head", ["lm_head.weight"], [table], "rows")
        return ModelSpec(
            family=numbers.family,
            vocab_size=numbers.vocab_size,
            hidden_size=numbers.hidden_size,
            max_position=numbers.max_position,
            embedding=EmbeddingSpec(weight=embedding, scale=numbers.embedding_scale),
            layers=tuple(self._layer(index) for index in range(numbers.num_layers)),
            head=HeadSpec(
                norm=self._norm("final_norm", names.final_norm, numbers.hidden_size),
                weight=head,
                logit_scale=numbers.logit_scale,
            ),
            bos_token_id=numbers.bos_token_id,
            eos_token_ids=numbers.eos_token_ids,
            dtype=numbers.dtype,
            header=numbers.to_json(),
        )

    def _layer(self, index: int) -> LayerSpec:
        numbers, names = self._numbers, self._names
        ours, theirs, hidden = f"layers.{index}", f"{names.layer}.{index}", numbers.hidden_size
        return LayerSpec(
            index=index,
            mixer_norm=self._norm(f"{ours}.attn_norm", f"{theirs}.{names.mixer_norm}", hidden),
            mixer=self._attention(index, ours, f"{theirs}.{names.attention}"),
            mlp_norm=self._norm(f"{ours}.mlp_norm", f"{theirs}.{names.mlp_norm}", hidden),
            mlp=self._mlp(ours, theirs),
            residual_scale=numbers.residual_scale,
        )

    def _attention(self, index: int, ours: str, theirs: str) -> AttentionSpec:
        numbers, dim = self._numbers, self._numbers.head_dim
        rows = [count * dim for count in (numbers.num_heads, numbers.num_kv_heads)]
        joined = [f"{theirs}.{part}_proj" for part in "qkv"]
        qkv_rows = [*rows, rows[1]]
        return AttentionSpec(
            num_heads=numbers.num_heads,
            num_kv_heads=numbers.num_kv_heads,
            head_dim=dim,
            scale=dim**-0.5 if numbers.attention_scale is None else numbers.attention_scale,
            rope=self._rope,
            window=numbers.sliding_window if index in self._windowed else None,
            qkv=self._linear(f"{ours}.qkv", joined, qkv_rows, "rows", bias=numbers.qkv_bias),
            q_norm=self._head_norm(f"{ours}.q_norm", f"{theirs}.q_norm"),
            k_norm=self._head_norm(f"{ours}.k_norm", f"{theirs}.k_norm"),
            output=self._linear(
                f"{ours}.o", [f"{theirs}.o_proj"], rows[:1], "columns", bias=numbers.output_bias
            ),
        )

    def _mlp(self, ours: str, theirs: str) -> MLPSpec:
        numbers, names = self._numbers, self._names
        up = [f"{theirs}.{name}" for name in names.up]
        wide, bias = numbers.intermediate_size, numbers.mlp_bias
        is_gated = len(up) > 1
        leaf = "gate_up" if is_gated else "up"
        return MLPSpec(
            activation=numbers.activation,
            is_gated=is_gated,
            up=self._linear(f"{ours}.{leaf}", up, [wide] * len(up), "rows", bias=bias),
            down=self._linear(
                f"{ours}.down", [f"{theirs}.{names.down}"], [wide], "columns", bias=bias
            ),
        )

    def _linear(
        self, ours: str, theirs: list[str], sizes: list[int], shard: Shard, *, bias: bool
    ) -> LinearSpec:
        """Return a matrix between the stream and ``sizes``, which are columns if they shard so."""
        hidden = self._numbers.hidden_size
        is_down = shard == "columns"
        shapes: list[tuple[int, ...]] = [(hidden, n) if is_down else (n, hidden) for n in sizes]
        weight = _weight(f"{ours}.weight", "linear", [f"{t}.weight" for t in theirs], shapes, shard)
        if not bias:
            return LinearSpec(weight=weight)
        rows: list[tuple[int, ...]] = [shape[:1] for shape in shapes]
        names = [f"{name}.bias" for name in theirs]
        # What is added to a sum of shares is added once.
        added = _weight(f"{ours}.bias", "bias", names, rows, "none" if is_down else shard)
        return LinearSpec(weight=weight, bias=added)

    def _norm(self, ours: str, theirs: str, size: int) -> NormSpec:
        numbers = self._numbers
        bias = None
        if numbers.norm == "layer":
            bias = _weight(f"{ours}.bias", "bias", [f"{theirs}.bias"], [(size,)])
        return NormSpec(
            weight=_weight(f"{ours}.weight", "norm", [f"{theirs}.weight"], [(size,)]),
            epsilon=numbers.rms_norm_eps,
            kind=numbers.norm,
            bias=bias,
        )

    def _head_norm(self, ours: str, theirs: str) -> NormSpec | None:
        numbers = self._numbers
        return self._norm(ours, theirs, numbers.head_dim) if numbers.qk_norm else None


def _weight(
    name: str,
    kind: WeightKind,
    sources: list[str],
    shapes: list[tuple[int, ...]],
    shard: Shard = "none",
) -> WeightSpec:
    return WeightSpec(
        name=name,
        shape=(sum(shape[0] for shape in shapes), *shapes[0][1:]),
        kind=kind,
        sources=tuple(zip(sources, shapes, strict=True)),
        shard=shard,
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
    if numbers.num_layers > _MOST_LAYERS:
        raise UnsupportedModelError(
            f"num_layers is {numbers.num_layers}; expected at most {_MOST_LAYERS}"
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
