"""Builds the spec of a hybrid decoder: linear attention, with full attention every few layers.

What Qwen3-Next, Qwen3.5 and Qwen3.6 have in common. Their full attention has a gate for each
element of its output and turns a quarter of each head; their norms keep a weight's distance from
one. Positions of pictures (mRoPE) do not matter to text: there all their parts are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.delta.shape import DeltaShape
from zse.models.guess import GuessNames, count_of_guesses, guess
from zse.models.layer_spec import LayerSpec, LinearAttentionSpec
from zse.models.parts import (
    Heads,
    Norms,
    Piece,
    attention,
    embedding,
    head_of,
    linear,
    mlp,
    vector,
    weight,
)
from zse.models.spec import HeadSpec, ModelSpec
from zse.models.weights import RowGroups, Source
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import Activation, AttentionSpec, LinearSpec
    from zse.models.mixture import Mixture
    from zse.models.rope import RoPESpec
    from zse.models.spec import GuessSpec

LINEAR, FULL = "linear_attention", "full_attention"
_PICTURES = ("model.visual.", "visual.")
_GUESSES = ("mtp.",)
_GUESS_NAMES = GuessNames(
    embedding_norm="mtp.pre_fc_norm_embedding",
    stream_norm="mtp.pre_fc_norm_hidden",
    join="mtp.fc",
    norm="mtp.norm",
)


@record
class DeltaNumbers(DeltaShape):
    """The numbers of a linear attention, and how its projections lie in checkpoints."""

    def apart(self, name: str, theirs: str, hidden: int) -> tuple[LinearSpec, LinearSpec]:
        """Return inputs and gates of projections that checkpoints keep apart (Qwen3.5)."""
        inputs = {"in_proj_qkv": self.channels, "in_proj_z": self.value_columns}
        gates = {"in_proj_b": self.num_value_heads, "in_proj_a": self.num_value_heads}
        return _joined(name, theirs, hidden, inputs, gates)

    def grouped(self, name: str, theirs: str, hidden: int) -> tuple[LinearSpec, LinearSpec]:
        """Return those of projections that lie together for each key head (Qwen3-Next)."""
        shared = self.num_value_heads // self.num_key_heads
        values = shared * self.value_dim
        return _joined(
            name,
            theirs,
            hidden,
            {"in_proj_qkvz": 2 * (self.key_columns + self.value_columns)},
            {"in_proj_ba": 2 * self.num_value_heads},
            orders=(
                RowGroups(
                    num_groups=self.num_key_heads,
                    sizes=(self.key_dim, self.key_dim, values, values),
                ),
                RowGroups(num_groups=self.num_key_heads, sizes=(shared, shared)),
            ),
        )


def _joined(
    name: str,
    theirs: str,
    hidden: int,
    inputs: dict[str, int],
    gates: dict[str, int],
    orders: tuple[RowGroups | None, RowGroups | None] = (None, None),
) -> tuple[LinearSpec, LinearSpec]:
    def pieces(rows: dict[str, int], order: RowGroups | None) -> list[Piece]:
        return [
            Piece(name=f"{theirs}.{part}", rows=count, order=order) for part, count in rows.items()
        ]

    return (
        linear(f"{name}.delta.inputs", pieces(inputs, orders[0]), hidden),
        linear(f"{name}.delta.gates", pieces(gates, orders[1]), hidden, shard="none", kind="gate"),
    )


@record
class _Decoder:
    """What the layers have in common."""

    hidden: int
    heads: Heads
    rope: RoPESpec
    norms: Norms
    delta: DeltaNumbers
    projections: Callable[[str, str, int], tuple[LinearSpec, LinearSpec]]
    activation: Activation
    width: int
    mixture: Mixture | None
    dense_layers: Collection[int]

    def layer(self, index: int, kind: str, ours: str, theirs: str) -> LayerSpec:
        norm = self.norms.norm
        after = norm(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", self.hidden)
        dense, experts = None, None
        if self.mixture is None or index in self.dense_layers:
            dense = mlp(
                ours,
                [f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"],
                f"{theirs}.mlp.down_proj",
                hidden=self.hidden,
                width=self.width,
                activation=self.activation,
            )
        else:
            experts = self.mixture.spec(ours, theirs, after, self.hidden, self.activation)
        mix = self._linear_attention if kind == LINEAR else self._full_attention
        return LayerSpec(
            index=index,
            mixer_norm=norm(f"{ours}.attn_norm", f"{theirs}.input_layernorm", self.hidden),
            mixer=mix(ours, theirs),
            mlp_norm=after if dense is not None else None,
            mlp=dense,
            experts=experts,
        )

    def _full_attention(self, ours: str, theirs: str) -> AttentionSpec:
        dim, heads, bias = self.heads.head_dim, self.heads.num_heads, self.heads.qkv_bias
        each = RowGroups(num_groups=heads, sizes=(dim, dim))  # of a query, then of its gate
        kv = self.heads.num_kv_heads * dim
        return attention(
            ours,
            f"{theirs}.self_attn",
            hidden=self.hidden,
            heads=self.heads,
            rope=self.rope,
            head_norms=self.norms,
            is_gated=True,
            qkv=linear(
                f"{ours}.qkv",
                [
                    Piece(name=f"{theirs}.self_attn.q_proj", rows=2 * heads * dim, order=each),
                    Piece(name=f"{theirs}.self_attn.k_proj", rows=kv),
                    Piece(name=f"{theirs}.self_attn.v_proj", rows=kv),
                ],
                self.hidden,
                bias=bias,
            ),
        )

    def _linear_attention(self, ours: str, theirs: str) -> LinearAttentionSpec:
        delta, name = self.delta, f"{theirs}.linear_attn"
        inputs, gates = self.projections(ours, name, self.hidden)
        channels = 2 * delta.key_columns + delta.value_columns
        taps = Source(name=f"{name}.conv1d.weight", shape=(channels, 1, delta.convolution_width))
        count = delta.num_value_heads
        plain = Norms(epsilon=self.norms.epsilon)
        return LinearAttentionSpec(
            num_key_heads=delta.num_key_heads,
            num_value_heads=count,
            key_dim=delta.key_dim,
            value_dim=delta.value_dim,
            convolution_width=delta.convolution_width,
            inputs=inputs,
            gates=gates,
            convolution=weight(f"{ours}.delta.convolution", "state", [taps]),
            decay=vector(f"{ours}.delta.decay", f"{name}.A_log", count, "state"),
            step_bias=vector(f"{ours}.delta.step_bias", f"{name}.dt_bias", count, "state"),
            norm=plain.norm(f"{ours}.delta.norm", f"{name}.norm", delta.value_dim),
            output=linear(
                f"{ours}.o",
                [Piece(name=f"{name}.out_proj", rows=self.hidden)],
                delta.value_columns,
                shard="columns",
            ),
        )


def sees_pictures(config: ConfigJSON) -> bool:
    """Whether a checkpoint has eyes, and other names for the tensors of its text."""
    return any("ConditionalGeneration" in str(name) for name in config.value("architectures", []))


def hybrid_decoder(
    config: ConfigJSON,
    *,
    is_grouped: bool = False,
    mixture: Mixture | None = None,
    dense_layers: Collection[int] = (),
) -> ModelSpec:
    """Return a decoder of linear and full attention.

    Args:
        config: Of the checkpoint, or of its text.
        is_grouped: Whether the projections of linear attention lie together for each key head.
        mixture: The experts of its layers; None where each has one MLP.
        dense_layers: Layers that have one MLP nevertheless.

    Raises:
        UnsupportedModelError: A value that is needed is missing or has no meaning.
    """
    tied, sees = config.flag("tie_word_embeddings"), sees_pictures(config)
    prefix = "model.language_model" if sees else "model"
    decoder = _decoder_of(config, mixture, dense_layers, is_grouped=is_grouped)
    norms, hidden = decoder.norms, decoder.hidden
    vocab_size = config.integer("vocab_size")
    table = embedding(f"{prefix}.embed_tokens", vocab_size, hidden, tied=tied)
    kinds = _kinds(config)
    return ModelSpec(
        family=config.family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        max_position=config.integer("max_position_embeddings", 32768),
        embedding=table,
        layers=tuple(
            decoder.layer(index, kind, f"layers.{index}", f"{prefix}.layers.{index}")
            for index, kind in enumerate(kinds)
        ),
        head=HeadSpec(
            norm=norms.norm("final_norm", f"{prefix}.norm", hidden),
            weight=head_of(table, tied=tied),
        ),
        guesses=_guesses(config, decoder, len(kinds)),
        left_out=(*_GUESSES, *_PICTURES) if sees else _GUESSES,
        **config.ends(),
        header=config.header(),
    )


def _decoder_of(
    config: ConfigJSON, mixture: Mixture | None, dense_layers: Collection[int], *, is_grouped: bool
) -> _Decoder:
    hidden, head_dim = config.integer("hidden_size"), config.integer("head_dim", 256)
    bias, delta = config.flag("attention_bias"), _delta_numbers(config)
    has_dense = mixture is None or bool(dense_layers)
    return _Decoder(
        hidden=hidden,
        heads=Heads(
            num_heads=config.integer("num_attention_heads"),
            num_kv_heads=config.integer("num_key_value_heads"),
            head_dim=head_dim,
            qkv_bias=bias,
            output_bias=bias,
        ),
        rope=config.rope(head_dim, partial=0.25),
        norms=Norms(epsilon=config.number("rms_norm_eps", 1e-6), offset=1.0),
        delta=delta,
        projections=delta.grouped if is_grouped else delta.apart,
        activation=config.activation("silu"),
        width=config.integer("intermediate_size") if has_dense else 0,
        mixture=mixture,
        dense_layers=dense_layers,
    )


def _guesses(config: ConfigJSON, decoder: _Decoder, index: int) -> tuple[GuessSpec, ...]:
    """Return the head that guesses, whose layer of full attention is number ``index``.

    Qwen3-Next's configuration does not name it, though its checkpoints have it.
    """
    if count_of_guesses(config, "mtp_num_hidden_layers", default=1) != 1:
        return ()

    def layer(ours: str) -> LayerSpec:
        return decoder.layer(index, FULL, ours, "mtp.layers.0")

    return (guess(0, _GUESS_NAMES, decoder.norms, decoder.hidden, layer),)


def _kinds(config: ConfigJSON) -> list[str]:
    """Return the kind of each layer."""
    count = config.num_layers()
    if (kinds := config.layer_types(LINEAR, FULL)) is not None:
        return list(kinds)
    every = config.integer("full_attention_interval", 4)
    if every < 1:
        raise UnsupportedModelError(f"full_attention_interval is {every}; expected at least 1")
    return [FULL if (index + 1) % every == 0 else LINEAR for index in range(count)]


def _delta_numbers(config: ConfigJSON) -> DeltaNumbers:
    numbers = DeltaNumbers(
        num_key_heads=config.integer("linear_num_key_heads", 16),
        num_value_heads=config.integer("linear_num_value_heads", 32),
        key_dim=config.integer("linear_key_head_dim", 128),
        value_dim=config.integer("linear_value_head_dim", 128),
        convolution_width=config.integer("linear_conv_kernel_dim", 4),
    )
    key_heads, value_heads = numbers.num_key_heads, numbers.num_value_heads
    if key_heads < 1 or value_heads < 1 or value_heads % key_heads:
        raise UnsupportedModelError(
            f"{value_heads} value heads do not divide among {key_heads} key heads"
        )
    return numbers
