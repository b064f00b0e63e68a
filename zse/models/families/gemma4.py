"""Gemma 4: wider heads where there is no window, and at the end keys of other layers.

Where there is no window keys may be values too. Values are normed and scores are not scaled. The
larger ones have experts beside a dense MLP, the smaller ones per-layer embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.models.families.gemma2 import NORM_NAMES
from zse.models.families.gemma3 import OTHER_PARTS
from zse.models.layer_spec import ExpertsSpec, LayerInputSpec, LinearSpec, MLPSpec, NormSpec
from zse.models.layered import dense_layer, layered_decoder
from zse.models.parts import Heads, Norms, Piece, attention, linear, llama_mlp, vector, weight
from zse.models.spec import LayerInputsSpec
from zse.models.weights import Source
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import Activation, AttentionSpec, LayerSpec
    from zse.models.rope import RoPESpec
    from zse.models.spec import ModelSpec
    from zse.models.weights import Shard

ARCHITECTURES = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
MODELS = "Gemma 4 E2B, E4B, 12B, 26B-A4B and 31B"
_WINDOWED, _FULL = "sliding_attention", "full_attention"


def read(config: ConfigJSON) -> ModelSpec:
    text = config.nested("text_config")
    text.expect("use_bidirectional_attention", None, "vision")
    text.expect("attention_bias", False)
    hidden = text.integer("hidden_size")
    norms = Norms(epsilon=text.number("rms_norm_eps", 1e-6))
    layers = _Layers(
        hidden=hidden,
        width=text.integer("intermediate_size"),
        shared_are_wide=text.flag("use_double_wide_mlp"),
        activation=text.activation("gelu_pytorch_tanh", "hidden_activation"),
        norms=norms,
        kinds=text.alternating_layers(every=6),
        num_shared=text.integer("num_kv_shared_layers", 0),
        window=text.integer("sliding_window", 512),
        heads=_heads(text),
        keys_are_values=text.flag("attention_k_eq_v"),
        experts=_mixture(text, norms, hidden) if text.flag("enable_moe_block") else None,
        ropes=_ropes(text),
        told=_told(text),
    )
    if not 0 <= layers.num_shared < len(layers.kinds):
        raise UnsupportedModelError(
            f"num_kv_shared_layers is {layers.num_shared} of {len(layers.kinds)} layers; expected "
            "fewer than all of them"
        )
    left_out = [
        f"layers.{index}.self_attn.{name}"
        for index in range(layers.first_shared, len(layers.kinds))
        for name in ("k_proj", "v_proj", "k_norm", "v_norm")
    ]
    spec = layered_decoder(
        text,
        norms,
        layers.layer,
        tied=text.flag("tie_word_embeddings", default=True),
        embedding_scale=hidden**0.5,
        logit_softcap=text.bound("final_logit_softcapping"),
        left_out=(*OTHER_PARTS, *left_out),
    )
    if not layers.told:
        return spec
    inputs = _layer_inputs(text, norms, layers.told)
    return replace(spec, embedding=replace(spec.embedding, layer_inputs=inputs))


def _told(text: ConfigJSON) -> int:
    """Return the columns that each layer is told of a token besides the stream; 0 for none."""
    width = text.integer("hidden_size_per_layer_input", 0)
    if width < 0:
        raise UnsupportedModelError(
            f"hidden_size_per_layer_input is {width}; expected a number above 0, or 0 for none"
        )
    return width


def _layer_inputs(text: ConfigJSON, norms: Norms, width: int) -> LayerInputsSpec:
    """Return the per-layer embeddings.

    The sum of the two parts is divided by the root of two, which both bring along. The projection
    is divided by the root of the hidden size before its norm; that only shrinks the epsilon.
    """
    hidden, columns = text.integer("hidden_size"), text.num_layers() * width
    tokens, known = text.integer("vocab_size_per_layer_input", 262144), text.integer("vocab_size")
    if tokens < known:
        raise UnsupportedModelError(
            f"vocab_size_per_layer_input is {tokens}; expected {known}, one for each token, or more"
        )
    table = Source(name="model.embed_tokens_per_layer.weight", shape=(tokens, columns))
    projection = Piece(name="model.per_layer_model_projection", rows=columns)
    of_norm = Source(name="model.per_layer_projection_norm.weight", shape=(width,))
    return LayerInputsSpec(
        width=width,
        table=weight("layer_inputs.table.weight", "embed", [table]),
        scale=(width / 2) ** 0.5,
        projection=linear("layer_inputs.projection", [projection], hidden),
        norm=NormSpec(
            weight=weight("layer_inputs.norm.weight", "norm", [of_norm], factor=0.5**0.5),
            epsilon=norms.epsilon * hidden,
        ),
    )


@record
class _Layers:
    """What the layers have in common, and how they differ."""

    hidden: int
    width: int
    shared_are_wide: bool
    """Whether layers without keys of their own have an MLP twice as wide."""
    activation: Activation
    norms: Norms
    kinds: Sequence[str]
    num_shared: int
    """Layers at the end that read keys of the last one of their kind before them."""
    window: int
    heads: dict[str, Heads]
    keys_are_values: bool
    """Where there is no window."""
    experts: _Mixture | None
    ropes: dict[str, RoPESpec]
    told: int
    """Columns of a layer's own input; 0 for none."""

    @property
    def first_shared(self) -> int:
        return len(self.kinds) - self.num_shared

    def layer(self, index: int, theirs: str) -> LayerSpec:
        ours, is_shared = f"layers.{index}", index >= self.first_shared
        layer = dense_layer(
            index,
            theirs,
            NORM_NAMES,
            self.norms,
            hidden=self.hidden,
            mixer=self._attention(index, ours, f"{theirs}.self_attn", is_shared=is_shared),
            mlp=llama_mlp(
                ours,
                theirs,
                hidden=self.hidden,
                width=self.width * (1 + (is_shared and self.shared_are_wide)),
                activation=self.activation,
            ),
        )
        scaled = replace(
            layer,
            own_input=self._own_input(ours, theirs) if self.told else None,
            stream_scale=vector(f"{ours}.scale", f"{theirs}.layer_scalar", 1, "state"),
        )
        if self.experts is None:
            return scaled
        return replace(
            scaled,
            dense_post_norm=self.norms.norm(
                f"{ours}.dense_post_norm", f"{theirs}.post_feedforward_layernorm_1", self.hidden
            ),
            experts=self.experts.spec(ours, theirs, self.activation),
        )

    def _own_input(self, ours: str, theirs: str) -> LayerInputSpec:
        gate = Piece(name=f"{theirs}.per_layer_input_gate", rows=self.told)
        projection = Piece(name=f"{theirs}.per_layer_projection", rows=self.hidden)
        after = f"{theirs}.post_per_layer_input_norm"
        return LayerInputSpec(
            activation=self.activation,
            gate=linear(f"{ours}.input.gate", [gate], self.hidden),
            projection=linear(f"{ours}.input.projection", [projection], self.told, shard="columns"),
            post_norm=self.norms.norm(f"{ours}.input.post_norm", after, self.hidden),
        )

    def _attention(self, index: int, ours: str, theirs: str, *, is_shared: bool) -> AttentionSpec:
        kind = self.kinds[index]
        heads, norm = self.heads[kind], self.norms.norm
        keys_are_values = self.keys_are_values and kind == _FULL and not is_shared
        dim = heads.head_dim
        rows = {"q": heads.num_heads * dim}
        if not is_shared:
            rows["k"] = heads.num_kv_heads * dim
        if not (is_shared or keys_are_values):
            rows["v"] = rows["k"]
        pieces = [Piece(name=f"{theirs}.{part}_proj", rows=count) for part, count in rows.items()]
        return attention(
            ours,
            theirs,
            hidden=self.hidden,
            heads=heads,
            rope=self.ropes[kind],
            window=self.window if kind == _WINDOWED else None,
            qkv=linear(f"{ours}.qkv", pieces, self.hidden),
            q_norm=norm(f"{ours}.q_norm", f"{theirs}.q_norm", dim),
            k_norm=None if is_shared else norm(f"{ours}.k_norm", f"{theirs}.k_norm", dim),
            value_norm_epsilon=None if is_shared else self.norms.epsilon,
            values_are_keys=keys_are_values,
            kv_of_layer=self._keys_of(kind) if is_shared else None,
        )

    def _keys_of(self, kind: str) -> int:
        """Return the last layer of a kind that has keys of its own."""
        own = [index for index in range(self.first_shared) if self.kinds[index] == kind]
        if not own:
            raise UnsupportedModelError(
                f"num_kv_shared_layers is {self.num_shared}: no layer of the kind {kind} before "
                "them has keys that they could read"
            )
        return own[-1]


@record
class _Mixture:
    """Experts beside a dense MLP; all of a layer's are one tensor."""

    count: int
    per_token: int
    width: int
    hidden: int
    norms: Norms

    def spec(self, ours: str, theirs: str, activation: Activation) -> ExpertsSpec:
        norm, hidden = self.norms.norm, self.hidden
        scale = Source(name=f"{theirs}.router.scale", shape=(hidden,))
        router = Piece(name=f"{theirs}.router.proj", rows=self.count)
        after = f"{theirs}.post_feedforward_layernorm_2"
        return ExpertsSpec(
            num_experts=self.count,
            experts_per_token=self.per_token,
            norm=norm(f"{ours}.experts_norm", f"{theirs}.pre_feedforward_layernorm_2", hidden),
            router_norm=NormSpec(
                weight=weight(f"{ours}.router_norm.weight", "norm", [scale], factor=hidden**-0.5),
                epsilon=self.norms.epsilon,
            ),
            router=linear(f"{ours}.router", [router], hidden, shard="none", kind="gate"),
            expert_scale=vector(
                f"{ours}.expert_scale", f"{theirs}.router.per_expert_scale", self.count, "state"
            ),
            expert=MLPSpec(
                activation=activation,
                is_gated=True,
                up=self._stack(ours, theirs, "gate_up", (2 * self.width, hidden), "rows"),
                down=self._stack(ours, theirs, "down", (hidden, self.width), "columns"),
            ),
            post_norm=norm(f"{ours}.experts_post_norm", after, hidden),
        )

    def _stack(
        self, ours: str, theirs: str, leaf: str, shape: tuple[int, int], shard: Shard
    ) -> LinearSpec:
        name = f"{ours}.experts.{leaf}.weight"
        source = Source(name=f"{theirs}.experts.{leaf}_proj", shape=(self.count, *shape))
        return LinearSpec(weight=weight(name, "experts", [source], shard=shard))


def _mixture(text: ConfigJSON, norms: Norms, hidden: int) -> _Mixture:
    return _Mixture(
        count=text.integer("num_experts"),
        per_token=text.integer("top_k_experts"),
        width=text.integer("moe_intermediate_size"),
        hidden=hidden,
        norms=norms,
    )


def _heads(text: ConfigJSON) -> dict[str, Heads]:
    """Return the heads of each kind of layer: where there is no window they may be others."""
    windowed = text.heads(scale=1.0)
    full = replace(
        windowed,
        head_dim=text.integer("global_head_dim", windowed.head_dim),
        num_kv_heads=text.integer("num_global_key_value_heads", windowed.num_kv_heads),
    )
    told, kinds = text.value("per_layer_config", {}), text.alternating_layers(every=6)
    first_full = kinds.index(_FULL) if _FULL in kinds else -1
    if isinstance(own := told.get(str(first_full)), dict):  # as transformers 5 writes it
        full = replace(
            full,
            head_dim=int(own.get("head_dim", full.head_dim)),
            num_kv_heads=int(own.get("num_key_value_heads", full.num_kv_heads)),
        )
    return {_WINDOWED: windowed, _FULL: full}


def _ropes(text: ConfigJSON) -> dict[str, RoPESpec]:
    heads = _heads(text)
    return {kind: text.rope(heads[kind].head_dim, kind=kind) for kind in (_WINDOWED, _FULL)}
