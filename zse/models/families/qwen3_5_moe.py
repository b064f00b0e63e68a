"""Qwen3.5's and Qwen3.6's mixtures of experts, one of which every token takes behind a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.hybrid import hybrid_decoder, sees_pictures
from zse.models.layer_spec import LinearSpec, MLPSpec
from zse.models.mixture import Mixture
from zse.models.parts import weight
from zse.models.weights import Source
from zse.records import record

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import Activation
    from zse.models.spec import ModelSpec
    from zse.models.weights import Shard

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
MODELS = "Qwen3.5 35B-A3B, 122B-A10B and 397B-A17B and Qwen3.6 35B-A3B, without their eyes"


@record
class _Joined(Mixture):
    """Experts whose matrices are one tensor for all of them, as models that see have them."""

    def expert(self, ours: str, theirs: str, hidden: int, activation: Activation) -> MLPSpec:
        def joined(name: str, tensor: str, rows: int, columns: int, shard: Shard) -> LinearSpec:
            source = Source(
                name=f"{theirs}.mlp.experts.{tensor}", shape=(self.num_experts, rows, columns)
            )
            matrix = weight(f"{ours}.experts.{name}.weight", "experts", [source], shard=shard)
            return LinearSpec(weight=matrix)

        return MLPSpec(
            activation=activation,
            is_gated=True,
            up=joined("gate_up", "gate_up_proj", 2 * self.width, hidden, "rows"),
            down=joined("down", "down_proj", hidden, self.width, "columns"),
        )


def read(config: ConfigJSON) -> ModelSpec:
    text = config.nested("text_config")
    kind = _Joined if sees_pictures(text) else Mixture
    mixture = kind(
        num_experts=text.count_of_experts(),
        experts_per_token=text.integer("num_experts_per_tok"),
        width=text.integer("moe_intermediate_size"),
        shared="mlp.shared_expert",
        shared_width=text.integer("shared_expert_intermediate_size"),
        shared_gate="mlp.shared_expert_gate",
    )
    return hybrid_decoder(text, mixture=mixture)
