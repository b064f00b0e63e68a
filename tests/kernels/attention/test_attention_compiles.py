"""The norm, activation, embedding, rotary and attention kernels compile without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.kernels.attention.variants import (
    DecodeForm,
    PrefillForm,
    context_form,
    context_queries,
    context_tokens,
    context_variant,
    decode_variant,
    gather_context_variant,
    output_gate_variant,
    prefill_form,
    prefill_variant,
    wide_decode_variant,
)
from zse.kernels.build.builder import build_pack
from zse.kernels.embed.variants import embed_variant
from zse.kernels.gate_up.variants import activate_times_variant, activate_variant, silu_mul_variant
from zse.kernels.latent import variants as latent_forms
from zse.kernels.linear.variants import matmul_8bit_split
from zse.kernels.lm_head_sample.variants import cap_variant
from zse.kernels.low_rank import variants as low_rank_forms
from zse.kernels.norm.variants import (
    family_norm_variant,
    heads_norm_variant,
    post_norm_variant,
    residual_norm_variant,
    stream_norm_variant,
)
from zse.kernels.pack import KernelPack
from zse.kernels.pool import variants as pool_forms
from zse.kernels.rope_store.variants import (
    any_rope_table_variant,
    family_rope_store_variant,
    rope_store_variant,
)
from zse.kernels.targets import target_named
from zse.kernels.turned.variants import (
    MOST_ELSEWHERE,
    WIDE_TARGET,
    turned_norm_variant,
    turned_silu_variant,
)

if TYPE_CHECKING:
    from pathlib import Path

    from zse.kernels.variant import Variant


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("sm_80", marks=pytest.mark.nightly), "sm_90"])
def test_kernels_compile_and_fit_the_device(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    target = target_named(name)
    prefill = prefill_form(128, name, cache="bf16", window=False, softcap=False)
    narrow = prefill_form(128, name, cache="int4", window=False, softcap=False)
    sinks = prefill_form(64, name, cache="bf16", window=True, softcap=False, sinks=True)
    variants = [
        gather_context_variant(128, "int4"),
        context_variant(128, context_tokens(128, name)),
        context_form(128, name, context_queries([128], name)),
        matmul_8bit_split("fp32"),
        turned_norm_variant(32),
        turned_silu_variant(256 if name == WIDE_TARGET else MOST_ELSEWHERE),
        residual_norm_variant(32, quantized=True, gather=False),
        family_norm_variant(32, quantized=True, layer=True),
        silu_mul_variant(1, element="fp32", quantized=True),
        activate_variant(8, element="bf16", quantized=False, gated=True),
        activate_times_variant(quantized=True),
        embed_variant("int4", 128),
        rope_store_variant(128, cache="int8", head_norm=True),
        decode_variant(DecodeForm(head_dim=128, quantized_output=True)),
        prefill_variant(prefill),
        decode_variant(DecodeForm(head_dim=128, cache="int4", quantized_output=True)),
        prefill_variant(narrow),
        rope_store_variant(128, cache="int4", head_norm=True),
        decode_variant(DecodeForm(head_dim=256, head_norm=True, family=True)),
        prefill_variant(sinks),
        output_gate_variant(),
        family_rope_store_variant(256, cache="bf16", head_norm=True),
        any_rope_table_variant(),
        post_norm_variant(32, quantized=True, normed=True),
        prefill_variant(PrefillForm(head_dim=32, whole=True)),
        prefill_variant(PrefillForm(head_dim=64, window=True, whole=True)),
        stream_norm_variant(8),
        embed_variant("int8", 0, placed=True),
        *pool_forms.VARIANTS,
        *low_rank_forms.VARIANTS,
        heads_norm_variant(32),
        cap_variant(),
        *forms_of_latents(name),
        *([wide_decode_variant(1, quantized_output=True)] if name == "sm_90" else ()),
    ]
    built = build_pack(target, variants, source_digest="test", cache_dir=tmp_path)
    pack = KernelPack.open(built.data)
    for variant in variants:
        assert pack.entry(variant.key).shared_bytes <= target.shared_limit_bytes


def forms_of_latents(name: str) -> list[Variant]:
    """Return a form of each kernel of latent attention, those that take the most memory."""
    narrow = name != "sm_90"
    attending = latent_forms.attend_form(64, narrow=narrow, quantized=False)
    rows = latent_forms.MANY_ROWS
    return [
        latent_forms.store_variant(quantized=True),
        latent_forms.query_norm_variant(quantized=True),
        latent_forms.wide_queries_variant("bf16", rows=rows),
        latent_forms.decode_variant(attending),
        latent_forms.join_variant(attending),
        latent_forms.prefill_variant(attending),
        latent_forms.values_variant("bf16", rows=rows, quantized=True),
    ]
