"""A decoder of Llama's kind whose layers choose among experts: its spec from a ``config.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.guess import GuessNames, guess
from zse.models.layer_spec import ExpertsSpec, LayerSpec
from zse.models.layered import layered_decoder
from zse.models.parts import Heads, Norms, Piece, attention, linear, llama_mlp, mlp, vector
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import (
        Activation,
        AttentionSpec,
        LinearSpec,
        MLPSpec,
        NormSpec,
        Scoring,
    )
    from zse.models.rope import RoPESpec
    from zse.models.spec import GuessSpec, ModelSpec


@record
class Mixture:
    """The experts of a layer, and what checkpoints call them there."""

    num_experts: int
    experts_per_token: int
    width: int
    """Of each expert."""
    router: str = "mlp.gate"
    router_bias: bool = False
    experts: str = "mlp.experts.{index}"
    up: tuple[str, str] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    scoring: Scoring = "softmax"
    selection_bias: str = ""
    """Empty: there is none; so it is with all names below."""
    num_groups: int = 1
    groups_per_token: int = 1
    scores_in_group: int = 1
    normalizes_weights: bool = True
    weight_scale: float = 1.0
    shared: str = ""
    shared_width: int = 0
    shared_gate: str = ""

    def spec(
        self, ours: str, theirs: str, norm: NormSpec | None, hidden: int, activation: Activation
    ) -> ExpertsSpec:
        """Return the experts of one layer, whose names begin with ``ours`` and ``theirs``."""

        def row_of(name: str, tensor: str, rows: int, *, bias: bool = False) -> LinearSpec:
            pieces = [Piece(name=f"{theirs}.{tensor}", rows=rows)]
            return linear(f"{ours}.{name}", pieces, hidden, shard="none", kind="gate", bias=bias)

        shared = None
        if self.shared:
            names = (f"{ours}.shared", f"{theirs}.{self.shared}")
            shared = self._mlp(*names, hidden, activation, width=self.shared_width)
        bias = self.selection_bias
        return ExpertsSpec(
            num_experts=self.num_experts,
            experts_per_token=self.experts_per_token,
            norm=norm,
            router=row_of("router", self.router, self.num_experts, bias=self.router_bias),
            scoring=self.scoring,
            selection_bias=vector(
                f"{ours}.router.selection_bias", f"{theirs}.{bias}", self.num_experts, "bias"
            )
            if bias
            else None,
            num_groups=self.num_groups,
            groups_per_token=self.groups_per_token,
            scores_in_group=self.scores_in_group,
            normalizes_weights=self.normalizes_weights,
            weight_scale=self.weight_scale,
            expert=self.expert(ours, theirs, hidden, activation),
            shared=shared,
            shared_gate=row_of("shared_gate", self.shared_gate, 1) if self.shared_gate else None,
        )

    def expert(self, ours: str, theirs: str, hidden: int, activation: Activation) -> MLPSpec:
        """Return what every expert is, its matrices those of all of them."""
        names = (f"{ours}.experts", f"{theirs}.{self.experts}")
        return self._mlp(*names, hidden, activation, width=self.width, stack=self.num_experts)

    def _mlp(
        self,
        ours: str,
        theirs: str,
        hidden: int,
        activation: Activation,
        *,
        width: int,
        stack: int = 1,
    ) -> MLPSpec:
        up = [f"{theirs}.{part}" for part in self.up]
        return mlp(
            ours,
            up,
            f"{theirs}.{self.down}",
            hidden=hidden,
            width=width,
            activation=activation,
            stack=stack,
        )


@record
class _Attentions:
    """What the attention of layers has in common."""

    hidden: int
    heads: Heads
    rope: RoPESpec
    head_norms: Norms | None
    windows: tuple[int | None, tuple[int, ...]]
    sinks: str

    def mixer(self, index: int, ours: str, theirs: str) -> AttentionSpec:
        window, windowed = self.windows
        own = {}
        if self.sinks:
            sinks, heads = f"{theirs}.{self.sinks}", self.heads.num_heads
            own["sinks"] = vector(f"{ours}.sinks", sinks, heads, "bias")
        return attention(
            ours,
            f"{theirs}.self_attn",
            hidden=self.hidden,
            heads=self.heads,
            rope=self.rope,
            window=window if index in windowed else None,
            head_norms=self.head_norms,
            **own,
        )


@record
class _Decoder:
    """What the layers have in common."""

    hidden: int
    norms: Norms
    activation: Activation
    mixer: Callable[[int, str, str], AttentionSpec]
    mixture: Mixture
    dense_layers: Collection[int]
    dense_width: int

    def layer(self, index: int, theirs: str, ours: str = "") -> LayerSpec:
        ours, norm = ours or f"layers.{index}", self.norms.norm
        after = norm(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", self.hidden)
        dense, experts = None, None
        if index in self.dense_layers:
            dense = llama_mlp(
                ours,
                theirs,
                hidden=self.hidden,
                width=self.dense_width,
                activation=self.activation,
            )
        else:
            experts = self.mixture.spec(ours, theirs, after, self.hidden, self.activation)
        return LayerSpec(
            index=index,
            mixer_norm=norm(f"{ours}.attn_norm", f"{theirs}.input_layernorm", self.hidden),
            mixer=self.mixer(index, ours, theirs),
            mlp_norm=after if dense is not None else None,
            mlp=dense,
            experts=experts,
        )


def mixture_decoder(
    config: ConfigJSON,
    mixture: Mixture,
    *,
    dense_layers: Collection[int] = (),
    windows: tuple[int | None, tuple[int, ...]] = (None, ()),
    qk_norm: bool = False,
    qkv_bias: bool = False,
    output_bias: bool = False,
    partial_rotary: float = 1.0,
    sinks: str = "",
    num_guesses: int = 0,
) -> ModelSpec:
    """Return a decoder of attention and experts.

    Args:
        config: Of the checkpoint.
        mixture: The experts of each layer.
        dense_layers: Layers that have one MLP instead.
        windows: The window, and the layers that have it.
        qk_norm: Whether each query and key head is normalized.
        qkv_bias: Whether queries, keys and values have a bias.
        output_bias: Whether what attention adds has one.
        partial_rotary: Part of a head that turns, where the checkpoint does not say.
        sinks: What checkpoints call the sinks of a layer's heads; empty where there are none.
        num_guesses: Heads that guess further tokens, which checkpoints may have as more layers.

    Raises:
        UnsupportedModelError: A value that is needed is missing or has no meaning.
    """
    heads = config.heads(qkv_bias=qkv_bias, output_bias=output_bias)
    norms = Norms(epsilon=config.number("rms_norm_eps", 1e-6))
    attentions = _Attentions(
        hidden=config.integer("hidden_size"),
        heads=heads,
        rope=config.rope(heads.head_dim, partial=partial_rotary),
        head_norms=norms if qk_norm else None,
        windows=windows,
        sinks=sinks,
    )
    return mixed_decoder(
        config, mixture, attentions.mixer, dense_layers=dense_layers, num_guesses=num_guesses
    )


def mixed_decoder(
    config: ConfigJSON,
    mixture: Mixture,
    mixer: Callable[[int, str, str], AttentionSpec],
    *,
    dense_layers: Collection[int] = (),
    num_guesses: int = 0,
) -> ModelSpec:
    """Return a decoder of experts whose family says what the attention of each layer is.

    Args:
        mixer: Makes it of the layer's number and of how its tensors' names begin, ours and theirs.
        num_guesses: Heads that guess further tokens, which checkpoints may have as more layers.
    """
    norms = Norms(epsilon=config.number("rms_norm_eps", 1e-6))
    layers = _Decoder(
        hidden=config.integer("hidden_size"),
        norms=norms,
        activation=config.activation("silu"),
        mixer=mixer,
        mixture=mixture,
        dense_layers=dense_layers,
        dense_width=config.integer("intermediate_size", 0) if dense_layers else 0,
    )
    first = config.num_layers()
    further = [f"model.layers.{index}" for index in range(first, first + num_guesses)]
    return layered_decoder(
        config,
        norms,
        layers.layer,
        guesses=tuple(_guess(index, first, name, layers) for index, name in enumerate(further)),
        # Embedding and head stand there once more.
        left_out=tuple(f"{name}." for name in further),
    )


def _guess(index: int, num_layers: int, theirs: str, layers: _Decoder) -> GuessSpec:
    """Return a head in the form of DeepSeek-V3."""
    names = GuessNames(
        embedding_norm=f"{theirs}.enorm",
        stream_norm=f"{theirs}.hnorm",
        join=f"{theirs}.eh_proj",
        norm=f"{theirs}.shared_head.norm",
    )

    def layer(ours: str) -> LayerSpec:
        return layers.layer(num_layers + index, theirs, ours)

    return guess(index, names, layers.norms, layers.hidden, layer)
