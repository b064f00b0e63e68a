"""gpt-oss: sinks, windows in turns, and experts that checkpoints keep in MXFP4.

All experts of a layer are one tensor. Rows of gate and up alternate in it; in a file each expert
has all of its gate rows, then all of its up rows. What is not MXFP4 has inputs before outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.layer_spec import LinearSpec, MLPSpec
from zse.models.mixture import Mixture, mixture_decoder
from zse.models.parts import weight
from zse.models.weights import MXFP4, RowOrder, Source
from zse.records import record

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import Activation
    from zse.models.spec import ModelSpec
    from zse.models.weights import Packing, Shard

ARCHITECTURES = ("GptOssForCausalLM",)
MODELS = "gpt-oss 20B and 120B"
PACKINGS = ("mxfp4",)

_WINDOWED, _FULL = "sliding_attention", "full_attention"
_SLOPE = 1.702


@record
class _Experts(Mixture):
    limit: float
    """Of what comes out of gate and up."""
    packing: Packing | None

    def expert(self, ours: str, theirs: str, hidden: int, _activation: Activation) -> MLPSpec:
        count, width = self.num_experts, self.width
        alternating = RowOrder(view=(count, width, 2), axes=(0, 2, 1))
        prefix = f"{theirs}.mlp.experts"
        return MLPSpec(
            activation="swiglu_oai",
            is_gated=True,
            limit=self.limit,
            up=self._linear(
                f"{ours}.experts.gate_up",
                f"{prefix}.gate_up_proj",
                (2 * width, hidden),
                order=alternating,
            ),
            down=self._linear(
                f"{ours}.experts.down", f"{prefix}.down_proj", (hidden, width), shard="columns"
            ),
        )

    def _linear(
        self,
        ours: str,
        theirs: str,
        shape: tuple[int, int],
        *,
        order: RowOrder | None = None,
        shard: Shard = "rows",
    ) -> LinearSpec:
        """Return the matrices of all experts, each [rows, columns], and their biases."""
        count, (rows, columns) = self.num_experts, shape
        is_packed = self.packing is not None
        matrix = Source(
            name=theirs,
            shape=(count, rows, columns) if is_packed else (count, columns, rows),
            is_transposed=not is_packed,
            order=order,
            packing=self.packing,
        )
        bias = Source(name=f"{theirs}_bias", shape=(count, rows), is_flat=True, order=order)
        return LinearSpec(
            weight=weight(f"{ours}.weight", "experts", [matrix], shard=shard),
            bias=weight(
                f"{ours}.bias", "bias", [bias], shard="none" if shard == "columns" else shard
            ),
        )


def read(config: ConfigJSON) -> ModelSpec:
    config.expect("hidden_act", "silu")
    config.expect("swiglu_alpha", _SLOPE)
    mixture = _Experts(
        num_experts=config.count_of_experts(),
        experts_per_token=config.integer("num_experts_per_tok", 4),
        width=config.integer("intermediate_size"),
        router="mlp.router",
        router_bias=True,
        scoring="softmax_chosen",
        limit=config.number("swiglu_limit", 7.0),
        packing=MXFP4 if config.packing() else None,
    )
    has_bias = config.flag("attention_bias", default=True)
    return mixture_decoder(
        config,
        mixture,
        windows=_windows(config),
        qkv_bias=has_bias,
        output_bias=has_bias,
        sinks="self_attn.sinks",
    )


def _windows(config: ConfigJSON) -> tuple[int | None, tuple[int, ...]]:
    """Return the window and the layers that have it: every other one where nothing says which."""
    kinds = config.layer_types(_WINDOWED, _FULL)
    if kinds is None:
        kinds = [_FULL if index % 2 else _WINDOWED for index in range(config.num_layers())]
    windowed = tuple(index for index, kind in enumerate(kinds) if kind == _WINDOWED)
    return (config.integer("sliding_window", 128), windowed) if windowed else (None, ())
