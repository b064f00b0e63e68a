"""Gemma 3: five layers with a window to one without, which turns by another table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.families.gemma2 import read_gemma

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.rope import RoPESpec
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
MODELS = "Gemma 3"
OTHER_PARTS = (
    "vision_tower.",
    "multi_modal_projector.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
)
"""What models that see and hear have besides."""


def read(config: ConfigJSON) -> ModelSpec:
    text = config.nested("text_config")
    text.expect("use_bidirectional_attention", False, None)

    def rope_of(head_dim: int, kind: str) -> RoPESpec:
        is_local = kind == "sliding_attention"
        return text.local_rope(head_dim) if is_local else text.rope(head_dim, kind=kind)

    return read_gemma(
        text,
        text.alternating_layers(every=text.integer("sliding_window_pattern", 6)),
        rope_of,
        norms_heads=True,
        left_out=OTHER_PARTS,
    )
