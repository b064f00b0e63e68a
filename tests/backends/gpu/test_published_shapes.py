"""A pack has kernels for the attention of every family in its published shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from recorded_launches import TABLES, Recorder, output, sums

from zse.backends.gpu.heads import attentions_of, kind_of, norms_all_heads, ropes_of
from zse.backends.gpu.supported import check_supported
from zse.kernels.attention.launch import (
    AttentionRules,
    DecodeWorkspace,
    PrefillTiles,
    attention_decode,
    attention_output_can_be_quantized,
    attention_prefill,
)
from zse.kernels.catalog import all_variants
from zse.kernels.layout import HeadInputs, PagedCache
from zse.kernels.norm.launch import PostNorm, heads_norm, residual_norm
from zse.kernels.rope_store.launch import rope_store, rope_table
from zse.models.families import read_checkpoint

if TYPE_CHECKING:
    from zse.models.layer_spec import AttentionSpec
    from zse.models.spec import ModelSpec

transformers = pytest.importorskip("transformers")
TILES = PrefillTiles(count=1, first_rows=0, num_rows=0, table_rows=0, first_positions=0)
GEMMA_4 = {
    "hidden_size_per_layer_input": 0,
    "global_head_dim": 512,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
}
GEMMA_4_MIXTURE = {
    **GEMMA_4,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}
GEMMA_4_SMALL = {
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
}
SHAPES: list[tuple[str, str, dict[str, Any]]] = [
    ("gemma2", "Gemma2ForCausalLM", {}),
    ("gemma2", "Gemma2ForCausalLM", {"head_dim": 128, "query_pre_attn_scalar": 144}),
    ("gemma3_text", "Gemma3ForCausalLM", {}),
    ("gemma3_text", "Gemma3ForCausalLM", {"head_dim": 128, "num_attention_heads": 32}),
    ("gemma4_text", "Gemma4ForCausalLM", GEMMA_4),
    ("gemma4_text", "Gemma4ForCausalLM", {**GEMMA_4, "num_kv_shared_layers": 6}),
    ("gemma4_text", "Gemma4ForCausalLM", GEMMA_4_MIXTURE),
    ("gemma4_text", "Gemma4ForCausalLM", GEMMA_4_SMALL),
    ("gpt_oss", "GptOssForCausalLM", {}),
    ("qwen3_next", "Qwen3NextForCausalLM", {}),
    ("qwen3_5_text", "Qwen3_5ForCausalLM", {}),
    ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", {}),
    ("olmo2", "Olmo2ForCausalLM", {}),
    ("olmo3", "Olmo3ForCausalLM", {}),
    ("smollm3", "SmolLM3ForCausalLM", {}),
    ("glm4", "Glm4ForCausalLM", {}),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {}),
]


def spec_of(model_type: str, architecture: str, changes: dict[str, Any]) -> ModelSpec:
    """Return the model of transformers' default numbers, which are those of a published one."""
    config = transformers.AutoConfig.for_model(model_type, **changes).to_dict()
    return read_checkpoint({**config, "architectures": [architecture]})


def launch_attention(launcher: Recorder, attention: AttentionSpec, key_scales: int) -> None:
    """Launch what a layer's attention needs in decode and in prefill."""
    kind, rope = kind_of(attention), attention.rope
    shape, cache = kind.shape, PagedCache(keys=0, values=0, key_scales=key_scales)
    joined = sums(shape.qkv_columns)
    has_norms = attention.q_norm is not None
    if norms_all_heads(attention):
        heads_norm(launcher, joined, shape, q_norm_address=0, k_norm_address=0, epsilon=1e-6)
        has_norms = False
    inputs = HeadInputs(
        qkv=joined,
        cosines_sines=0,
        positions=0,
        q_norm=16 * has_norms,
        rotary_dim=0 if rope is None else rope.rotary_dim,
        value_epsilon=attention.value_norm_epsilon or 0.0,
    )
    rules = AttentionRules(
        window=kind.window,
        softcap=attention.softcap or 0.0,
        sinks=16 * (attention.sinks is not None),
    )
    workspace = DecodeWorkspace(partials=0, counters=0)
    quantized = output(shape.query_columns, quantized=attention_output_can_be_quantized(shape))
    attention_decode(launcher, inputs, shape, cache, TABLES, workspace, quantized, rules=rules)
    rope_store(launcher, inputs, shape, cache, TABLES, table_rows_address=0, queries_address=0)
    attention_prefill(launcher, 0, shape, cache, TABLES, TILES, 0, rules=rules)


@pytest.mark.parametrize("key_scales", [0, 16], ids=["bf16", "int8"])
@pytest.mark.parametrize(("model_type", "architecture", "changes"), SHAPES)
def test_every_kernel_of_a_published_shape_is_in_the_pack(
    model_type: str, architecture: str, changes: dict[str, Any], key_scales: int
) -> None:
    spec, launcher = spec_of(model_type, architecture, changes), Recorder()
    attentions = attentions_of(spec)
    assert attentions
    for attention in attentions.values():
        launch_attention(launcher, attention, key_scales)
    for rope in ropes_of(spec):
        rope_table(
            launcher, inverse_frequencies_address=0, table_address=0, num_positions=1,
            rotary_dim=rope.rotary_dim,
        )  # fmt: skip
    hidden = spec.hidden_size
    for norm, quantized in ((0, True), (None, False)):
        residual_norm(
            launcher, 0, 1, hidden, norm, 1e-6, output(hidden, quantized=quantized),
            post=PostNorm(address=16),
        )  # fmt: skip
    assert launcher.keys <= {variant.key for variant in all_variants()}


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "olmo2", "olmo3", "smollm3", "glm4"])
def test_dense_families_are_computed(family: str) -> None:
    names = {model_type: architecture for model_type, architecture, _ in SHAPES}
    check_supported(spec_of(family, names[family], {}))


@pytest.mark.parametrize("changes", [GEMMA_4_MIXTURE, GEMMA_4_SMALL])
def test_gemma_4_with_experts_and_with_per_layer_embeddings_is_computed(
    changes: dict[str, Any],
) -> None:
    check_supported(spec_of("gemma4_text", "Gemma4ForCausalLM", changes))
