"""A pack holds what the launches ask for, and nothing that none of them does."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from recorded_launches import TABLES, Recorder, output, packed, sums

from zse.device.facts_of_gpus import A100, H200, L4
from zse.kernels.attention import variants as attention_forms
from zse.kernels.attention.context import (
    Context,
    attention_over_context,
    gather_context,
    takes_context,
)
from zse.kernels.attention.launch import (
    AttentionRules,
    DecodeWorkspace,
    PrefillTiles,
    attention_decode,
    attention_output_can_be_quantized,
    attention_prefill,
    output_gate,
)
from zse.kernels.attention.wide import WideWorkspace, attention_decode_wide
from zse.kernels.delta import variants as delta_forms
from zse.kernels.delta.launch import (
    DeltaRuns,
    DeltaStates,
    DeltaVectors,
    delta_decode,
    delta_prefill,
)
from zse.kernels.delta.shape import DeltaShape
from zse.kernels.embed import variants as embed_forms
from zse.kernels.embed.launch import EmbedTable, Placing, embed
from zse.kernels.exchange import variants as exchange_forms
from zse.kernels.exchange.launch import Exchange, rank_gather, rank_norm, rank_sum
from zse.kernels.experts import variants as expert_forms
from zse.kernels.experts.launch import (
    combine,
    direct_products,
    grouped_products,
    pair_products,
)
from zse.kernels.experts.plan import PairPlan
from zse.kernels.experts.weight import StackedWeight
from zse.kernels.gate_up import variants as gate_up_forms
from zse.kernels.gate_up.launch import activate, activate_times
from zse.kernels.join import variants as join_forms
from zse.kernels.join.launch import JoinNorms, add_bent, join_rows
from zse.kernels.latent import variants as latent_forms
from zse.kernels.latent.launch import (
    LatentRows,
    latent_decode,
    latent_prefill,
    latent_store,
    latent_values,
    query_norm,
    wide_queries,
)
from zse.kernels.latent.shape import LatentShape
from zse.kernels.layout import (
    CACHES_OF_WIDTHS,
    FAMILY_HEAD_DIMS,
    HEAD_DIMS,
    TEXT_HEAD_DIMS,
    HeadInputs,
    HeadShape,
    PagedCache,
    Plain,
    Quantized,
    Turned,
    adapter_tile_rows,
)
from zse.kernels.linear.plan import candidates
from zse.kernels.linear.variants import COMMON_FORMATS, OTHER_FORMATS
from zse.kernels.linear.weight import PLAIN_SCHEMES, LinearWeight
from zse.kernels.low_rank import variants as low_rank_forms
from zse.kernels.low_rank.launch import AdaptedMatrix, AdaptedRows, expand, shrink
from zse.kernels.low_rank.launch_pairs import add_to_pairs
from zse.kernels.norm import variants as norm_forms
from zse.kernels.norm.launch import PostNorm, heads_norm, residual_norm, stream_norm
from zse.kernels.pool import variants as pool_forms
from zse.kernels.pool.launch import POOLINGS, Scoring, TextRows, pool_rows, score_texts
from zse.kernels.rope_store import variants as rope_forms
from zse.kernels.rope_store.launch import rope_store, rope_table
from zse.kernels.route import variants as route_forms
from zse.kernels.route.launch import (
    Choice,
    Grouping,
    Pending,
    Router,
    RouterMatrix,
    choose,
    group_pairs,
    norm_route,
)
from zse.kernels.turned import variants as turned_forms
from zse.kernels.turned.gates import round_gates, turned_gates
from zse.kernels.turned.launch import turned_norm, turned_silu

EITHER = (False, True)
TILES = PrefillTiles(count=1, first_rows=0, num_rows=0, table_rows=0, first_positions=0)


def test_every_norm_is_one_that_a_row_asks_for() -> None:
    launcher = Recorder()
    for groups, quantized, gather in product(norm_forms.ROW_GROUPS, EITHER, EITHER):
        hidden = 128 * groups
        target = output(hidden, quantized=quantized)
        residual_norm(launcher, 0, 1, hidden, 0, 1e-6, target, row_index_address=int(gather))
        for layer in EITHER:
            residual_norm(
                launcher, 0, 1, hidden, 0, 1e-6, target, is_layer_norm=layer, output_scale=0.5
            )
        for norm in (0, None):
            residual_norm(launcher, 0, 1, hidden, norm, 1e-6, target, post=PostNorm(address=16))
        shape = HeadShape(num_heads=2 * groups, kv_heads=1, head_dim=64)
        heads_norm(
            launcher, sums(shape.qkv_columns), shape, q_norm_address=0, k_norm_address=0,
            epsilon=1e-6,
        )  # fmt: skip
    for groups in norm_forms.STREAM_ROW_GROUPS:
        target = Plain(rows=1, columns=128 * groups, values=0)
        stream_norm(launcher, 0, target.columns, 0, 1e-6, target)
    assert launcher.keys == packed(of=norm_forms.VARIANTS)


def test_every_exchange_is_one_that_ranks_ask_for() -> None:
    launcher = Recorder()
    for ranks, narrow in product((2, 4), EITHER):
        exchange = Exchange(
            rank=0, ranks=ranks, words=0, offsets=0, state=0, failed=0, broken=0,
            slot_words=8192, programs=128, patience_nanoseconds=1,
        )  # fmt: skip
        rank_sum(launcher, exchange, sums(256), narrow=narrow)
        rank_gather(launcher, exchange, 0, 0, rows=1, part_columns=64, own_columns=64, columns=128)
        for groups, quantized in product(exchange_forms.NORM_GROUPS, EITHER):
            hidden = 128 * groups
            target = output(hidden, quantized=quantized)
            added = sums(hidden)
            rank_norm(launcher, exchange, 0, 1, hidden, 0, 1e-6, target, added, narrow=narrow)
            for part in exchange_forms.PART_GROUPS:
                given = (0, 1, hidden, 0, 1e-6, target, added)
                rank_norm(launcher, exchange, *given, groups_of_part=part)
    assert launcher.keys == packed(of=exchange_forms.VARIANTS)


def test_every_activation_is_one_that_a_product_asks_for() -> None:
    launcher = Recorder()
    for rows, quantized, gated, bias in product((1, 4096), EITHER, EITHER, (0, 16)):
        activate(
            launcher, sums(256 * (1 + gated), rows), output(256, quantized=quantized, rows=rows),
            gated=gated, bias_address=bias,
        )  # fmt: skip
        product_16 = Plain(rows=rows, columns=256 * (1 + gated), values=0)
        target = output(256, quantized=False, rows=rows)
        activate(launcher, product_16, target, gated=gated, bias_address=bias)
    for quantized in EITHER:
        target = output(256, quantized=quantized)
        activate_times(launcher, sums(256), 16, 512, target, activation="gelu_tanh")
    assert launcher.keys == packed(of=gate_up_forms.VARIANTS)


def test_every_form_of_adapters_is_one_that_a_step_asks_for() -> None:
    launcher = Recorder()
    matrix = AdaptedMatrix(
        first_record=0, starts=0, parts=1, widest_part=256, memory=0, most_rank=16
    )
    for prefill_rows, quantized, element in product((0, 32), EITHER, ("fp32", "bf16")):
        if prefill_rows and quantized:
            continue
        tiles = AdaptedRows(tiles=1, tile_rows=adapter_tile_rows(prefill_rows), rows=0, places=0)
        target = sums(256) if element == "fp32" else output(256, quantized=False)
        shrink(launcher, matrix, tiles, output(256, quantized=quantized), 0)
        expand(launcher, matrix, tiles, 256, target, 0)
        choice = Choice(rows=1, slots=2, experts=0, weights=0)
        inputs = output(256, quantized=quantized)
        add_to_pairs(launcher, matrix, tiles, choice, inputs, target, 0, is_down=False)
    assert launcher.keys == packed(of=low_rank_forms.VARIANTS)


def test_every_embedding_is_one_that_a_table_asks_for() -> None:
    launcher = Recorder()
    tables = [("bf16", 0), ("fp16", 0), ("fp32", 0), ("int8", 0)]
    tables += product(("int4", "nf4"), (128, 64, 32))
    for (scheme, group), scale in product(tables, (1.0, 12.0)):
        embed(
            launcher, EmbedTable(scheme=scheme, weights=0, group_size=group), tokens_address=0,
            slots_address=0, last_tokens_address=0, rows=1, hidden=128, residual_address=0,
            scale=scale,
        )  # fmt: skip
    for scheme in embed_forms.PLACED_SCHEMES:
        embed(
            launcher, EmbedTable(scheme=scheme, weights=0), tokens_address=0, slots_address=0,
            last_tokens_address=0, rows=1, hidden=128, residual_address=0,
            placing=Placing(position_rows=16),
        )  # fmt: skip
    assert launcher.keys == packed(of=embed_forms.VARIANTS)


def test_every_rotation_is_one_that_a_head_width_asks_for() -> None:
    launcher = Recorder()
    for columns in (*HEAD_DIMS, 32):
        rope_table(
            launcher, inverse_frequencies_address=0, table_address=0, num_positions=1,
            rotary_dim=columns,
        )  # fmt: skip
    kinds = [*heads_of_all_kinds(), *((dim, 0) for dim in heads_of_texts())]
    for (head_dim, rotary_dim), norm, cache in product(kinds, (0, 16), CACHES):
        no_cache = head_dim not in CACHES_OF_WIDTHS[cache.dtype]
        if no_cache or (norm and head_dim in heads_of_texts()):
            continue
        shape = HeadShape(num_heads=2, kv_heads=1, head_dim=head_dim)
        inputs = HeadInputs(
            qkv=sums(shape.qkv_columns), cosines_sines=0, positions=0, q_norm=norm,
            rotary_dim=rotary_dim,
        )  # fmt: skip
        rope_store(
            launcher, inputs, shape, cache, TABLES,
            table_rows_address=0, queries_address=0,
        )  # fmt: skip
    assert launcher.keys == packed(of=rope_forms.VARIANTS)


def heads_of_all_kinds() -> list[tuple[int, int | None]]:
    """Return head widths with the columns that turn; None where heads are as usual."""
    return [(dim, None) for dim in HEAD_DIMS] + [(dim, 32) for dim in FAMILY_HEAD_DIMS]


def heads_of_texts() -> list[int]:
    """Return head widths that encoders alone have."""
    return [dim for dim in TEXT_HEAD_DIMS if dim not in FAMILY_HEAD_DIMS]


@dataclass
class Rules:
    num_experts: int = 8
    experts_per_token: int = 2
    scoring: str = "softmax"
    num_groups: int = 1
    groups_per_token: int = 1
    scores_in_group: int = 1
    normalizes_weights: bool = False
    weight_scale: float = 1.0


CHOICE = Choice(rows=1, slots=2, experts=0, weights=0)


def test_every_routing_is_one_that_a_router_asks_for() -> None:
    launcher = Recorder()
    for experts in (8, 128, 160, 512):
        router = Router(rules=Rules(num_experts=experts))
        choose(launcher, router, sums(experts), CHOICE, None)
        group_pairs(launcher, CHOICE, Grouping(pairs=2, groups=experts, order=0, starts=0))
        for hidden, quantized in product((1024, 2048, 2880, 8192), EITHER):
            norm_route(
                launcher, 0, Pending(), 0, 1e-6, router, RouterMatrix(weights=0),
                output(hidden, quantized=quantized), CHOICE, 0, 0,
            )  # fmt: skip
    assert launcher.keys == packed(of=route_forms.VARIANTS)


def test_every_product_of_experts_is_one_that_a_plan_or_a_number_of_pairs_asks_for() -> None:
    launcher = Recorder()
    for scheme, group in (*COMMON_FORMATS, *OTHER_FORMATS):
        stack = LinearWeight(scheme=scheme, rows=64, columns=512, weights=0, group_size=group)
        weight, quantized = StackedWeight(stack=stack, experts=4), scheme not in PLAIN_SCHEMES
        for plan in candidates(weight.of(2), 1, quantized=quantized):
            form = expert_forms.like_gemv(scheme, group, plan.variant)
            pairs = PairPlan(variant=form, splits=plan.splits, pairs=2, rows=16)
            inputs = output(512, quantized=quantized)
            pair_products(launcher, weight, inputs, CHOICE, 0, pairs, is_down=False)
        for rows in (1, 100, 1000):
            choice = Choice(rows=rows, slots=2, experts=0, weights=0)
            grouping = Grouping(pairs=2 * rows, groups=4, order=0, starts=0)
            inputs = Plain(rows=rows, columns=512, values=0)
            grouped_products(launcher, weight, inputs, choice, grouping, 0, is_down=False)
    grouping = Grouping(pairs=2, groups=4, order=0, starts=0)
    for (scheme, group), tile in product(
        expert_forms.DIRECT_FORMATS, (*expert_forms.DIRECT_TILES, 0)
    ):
        stack = LinearWeight(scheme=scheme, rows=64, columns=512, weights=0, group_size=group)
        codes, form = output(512, quantized=True), expert_forms.unsorted_form(scheme)
        form = expert_forms.direct_form(scheme, tile) if tile else form
        assert isinstance(codes, Quantized)
        weight = StackedWeight(stack=stack, experts=4)
        direct_products(launcher, weight, codes, CHOICE, grouping, 0, form, is_down=False)
    combine(launcher, 0, Plain(rows=2, columns=512, values=0), CHOICE)
    assert launcher.keys == packed(of=expert_forms.VARIANTS)


def test_every_norm_and_gate_that_is_turned_is_one_that_a_width_asks_for() -> None:
    launcher = Recorder()
    for hidden in (2048, 4096, 8192):
        turned_norm(launcher, 0, 0, 1e-6, Turned(rows=300, columns=hidden, codes=0, scales=0))
    for width in (4096, 8192, 14336, 18944, 27648):
        inputs = Plain(rows=200, columns=2 * width, values=0)
        output = Turned(rows=200, columns=width, codes=0, scales=0)
        turned_silu(launcher, inputs, output)
        weights = Turned(rows=2 * width, columns=4096, codes=0, scales=0)
        turned_gates(launcher, Turned(rows=200, columns=4096, codes=0, scales=0), weights, 0)
        round_gates(launcher, 0, output)
    assert launcher.keys == packed(of=turned_forms.VARIANTS)


CACHES = (
    PagedCache(keys=0, values=0),
    PagedCache(keys=0, values=0, key_scales=16),
    PagedCache(keys=0, values=0, key_scales=16, is_narrow=True),
)


def softcaps_of(head_dim: int, cache: PagedCache) -> tuple[float, ...]:
    """Return no bound of scores, and one where there are kernels with one."""
    has_bound = head_dim in attention_forms.SOFTCAP_HEAD_DIMS and not cache.is_narrow
    return (0.0, 30.0) if has_bound else (0.0,)


def attend(launcher: Recorder, head_dim: int, rotary_dim: int | None, cache: PagedCache) -> None:
    """Launch every decode attention of a head width with a cache of one type."""
    softcaps = softcaps_of(head_dim, cache)
    each = product((8, 16), (0, 16), EITHER, softcaps, (1, 0))
    for group, norm, quantized, softcap, splits in each:
        shape = HeadShape(num_heads=group, kv_heads=1, head_dim=head_dim)
        is_other = softcap and (norm or group == 16 or rotary_dim)
        if (group == 16 and head_dim != 128) or (head_dim == 512 and not norm) or is_other:
            continue
        if quantized and not attention_output_can_be_quantized(shape):
            continue
        inputs = HeadInputs(
            qkv=sums(shape.qkv_columns), cosines_sines=0, positions=0, q_norm=norm,
            rotary_dim=rotary_dim,
        )  # fmt: skip
        attention_decode(
            launcher, inputs, shape, cache, TABLES, DecodeWorkspace(partials=0, counters=0),
            output(group * head_dim, quantized=quantized), rules=AttentionRules(softcap=softcap),
            splits=splits,
        )  # fmt: skip


def attend_with_prompts(launcher: Recorder, head_dim: int, cache: PagedCache) -> None:
    """Launch every prefill attention of a head width with a cache of one type."""
    shape = HeadShape(num_heads=8, kv_heads=1, head_dim=head_dim)
    rules = [{}, {"window": 7}] if head_dim <= 256 else [{}]
    softcaps = softcaps_of(head_dim, cache)
    sinks = (0, 16) if head_dim in attention_forms.SINK_HEAD_DIMS else (0,)
    for rule, softcap, sink in product(rules, softcaps, sinks):
        attention_prefill(
            launcher, 0, shape, cache, TABLES, TILES, 0,
            rules=AttentionRules(softcap=softcap, sinks=sink, **rule),
        )  # fmt: skip
    if takes_context(shape, launcher.device.target):
        for widths in ((head_dim,), (head_dim, 256)):
            queries = attention_forms.context_queries(widths, launcher.device.target)
            context = Context(keys=0, num_blocks=4, blocks=0, tile_lines=0, queries=queries)
            gather_context(launcher, shape, cache, context)
            attention_over_context(launcher, 0, shape, context, TILES, 0)


def attention_of_many_rows() -> set[str]:
    """Return the attention over INT8 caches that one program a sequence reads."""
    launcher = Recorder()
    shape = HeadShape(num_heads=8, kv_heads=1, head_dim=attention_forms.WIDE_HEAD_DIM)
    inputs = HeadInputs(qkv=sums(shape.qkv_columns), cosines_sines=0, positions=0)
    rounded = PagedCache(keys=0, values=0, key_scales=16, value_scales=16)
    for quantized, splits in product(EITHER, (1, 2)):
        attention_decode_wide(
            launcher, inputs, shape, rounded, TABLES, WideWorkspace(queries=0, row_numbers=0),
            output(shape.query_columns, quantized=quantized), rules=AttentionRules(), splits=splits,
        )  # fmt: skip
    return {key for key in launcher.keys if key.startswith("attention.")}


def test_every_attention_is_one_that_heads_and_a_cache_ask_for() -> None:
    keys: set[str] = set()
    for device, cache in product((A100, H200), CACHES):
        launcher = Recorder(device)
        for head_dim, rotary_dim in heads_of_all_kinds():
            if head_dim in CACHES_OF_WIDTHS[cache.dtype]:
                attend(launcher, head_dim, rotary_dim, cache)
        for head_dim in attention_forms.PREFILL_HEAD_DIMS:
            if head_dim in CACHES_OF_WIDTHS[cache.dtype]:
                attend_with_prompts(launcher, head_dim, cache)
        gated = HeadShape(
            num_heads=2, kv_heads=1, head_dim=64, parts=("query", "gate", "key", "value")
        )
        inputs = HeadInputs(qkv=sums(gated.qkv_columns), cosines_sines=0, positions=0)
        output_gate(launcher, inputs, gated, 0)
        for head_dim, window in ((32, 0), (64, 0), (64, 7)):
            shape = HeadShape(num_heads=2, kv_heads=2, head_dim=head_dim)
            attention_prefill(
                launcher, 0, shape, PagedCache(keys=0, values=0), TABLES, TILES, 0,
                rules=AttentionRules(window=window, whole=True),
            )  # fmt: skip
        keys |= launcher.keys
    keys |= attention_of_many_rows()
    assert keys == packed(of=attention_forms.VARIANTS)


def test_every_form_of_linear_attention_is_one_that_a_head_width_asks_for() -> None:
    launcher = Recorder()
    layer = DeltaVectors(convolution=0, decay=0, step_bias=0, norm=0, epsilon=1e-6)
    states = DeltaStates(rings=0, matrices=0)
    runs = DeltaRuns(count=1, longest=1, first_rows=0, num_rows=0, first_positions=0, slots=0)
    for head_dim, quantized in product(delta_forms.HEAD_DIMS, EITHER):
        shape = DeltaShape(
            num_key_heads=1,
            num_value_heads=2,
            key_dim=head_dim,
            value_dim=head_dim,
            convolution_width=delta_forms.CONVOLUTION_WIDTH,
        )
        inputs, gates = sums(shape.input_columns), sums(4)
        if not quantized or delta_forms.output_can_be_quantized(head_dim):
            target = output(shape.value_columns, quantized=quantized)
            for runs_address in (0, 256):
                delta_decode(
                    launcher,
                    shape,
                    inputs,
                    gates,
                    layer,
                    states,
                    target,
                    positions_address=0,
                    slots_address=0,
                    runs_address=runs_address,
                )
        delta_prefill(
            launcher,
            shape,
            inputs,
            gates,
            layer,
            states,
            runs,
            workspace_address=0,
            outputs_address=0,
        )
    assert launcher.keys == packed(of=delta_forms.VARIANTS)


def test_rows_are_joined_and_bent_by_one_form_each() -> None:
    launcher = Recorder()
    norms = JoinNorms(embedding=0, embedding_epsilon=1e-6, state=0, state_epsilon=1e-6)
    join_rows(launcher, 0, 0, norms, Plain(rows=1, columns=256, values=0))
    add_bent(launcher, 0, sums(128), 0)
    assert launcher.keys == packed(of=join_forms.VARIANTS)


def test_every_pooling_is_of_one_form_and_scores_are_of_one_for_each_type() -> None:
    launcher = Recorder()
    for pooling in POOLINGS:
        texts = TextRows(count=1, first_rows=0, num_rows=0)
        pool_rows(launcher, 0, texts, 0, hidden=128, pooling=pooling)
    for scheme in PLAIN_SCHEMES:
        weight = LinearWeight(scheme=scheme, rows=1, columns=128, weights=0)
        score_texts(launcher, sums(128), Scoring(is_tanh=True, weight=weight, bias=0), 0)
    assert launcher.keys == packed(of=pool_forms.VARIANTS)


def test_every_form_of_latent_attention_is_one_that_heads_and_a_cache_ask_for() -> None:
    keys: set[str] = set()
    for device, heads, scales in product((L4, H200), (16, 128), (0, 16)):
        launcher, cache = Recorder(device), PagedCache(keys=0, values=0, key_scales=scales)
        shape = LatentShape(num_heads=heads, rank=512, turning=64, key_dim=128, value_dim=128)
        attend_to_latents(launcher, shape, cache)
        keys |= launcher.keys
    assert keys == packed(of=latent_forms.VARIANTS)


def attend_to_latents(launcher: Recorder, shape: LatentShape, cache: PagedCache) -> None:
    """Launch every kernel of latent attention for a cache of one type."""
    rows, joined = LatentRows(count=1, cosines_sines=0, positions=0), sums(shape.joined_columns)
    latent_store(launcher, shape, joined, rows, cache, TABLES, norm_address=0, epsilon=1e-6)
    latent_decode(launcher, shape, 0, rows, cache, TABLES, scale=1.0, splits=2, partials_address=0)
    latent_prefill(launcher, shape, 0, cache, TABLES, TILES, scale=1.0)
    for element, count in product(PLAIN_SCHEMES, (1, 100)):
        matrix = LinearWeight(scheme=element, rows=256 * shape.num_heads, columns=512, weights=0)
        many = LatentRows(count=count, cosines_sines=0, positions=0)
        wide_queries(launcher, shape, sums(shape.query_columns, count), many, matrix, 0)
        for quantized in EITHER:
            values = output(shape.value_columns, quantized=quantized, rows=count)
            latent_values(launcher, shape, 0, matrix, values)
            target = output(1536, quantized=quantized)
            query_norm(launcher, shape, joined, target, norm_address=0, epsilon=1e-6)
