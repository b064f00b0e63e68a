"""How a GPU's memory is shared out, and what is said when it is too small."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from attention_models import beside, mixed, told
from family_shapes import shape_of

from zse.backends.gpu.budget import MARGIN_BYTES, MemoryBudget
from zse.backends.gpu.graphs import bucket_of
from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.kept_weights import KeptWeights, kept_of
from zse.backends.gpu.kv_pool import KVLayout, LayerKV, layout_for
from zse.backends.gpu.memory import (
    choose_num_blocks,
    kept_limit_bytes,
    with_agreement,
    with_long_steps,
)
from zse.backends.gpu.plans import StepPlans
from zse.backends.gpu.scratch import BATCH_ROWS
from zse.backends.kv_groups import KVGroups, groups_of
from zse.backends.states import states_of, with_states_that_fit
from zse.backends.types import MAX_DRAFTS
from zse.device.facts_of_gpus import H200
from zse.errors import DeviceError
from zse.kernels.attention.launch import decode_counters_bytes
from zse.kernels.linear.weight import LinearWeight
from zse.models.families import read_checkpoint
from zse.models.memory import ModelFacts, estimate_memory
from zse.models.uniform import TensorNames, UniformDecoder
from zse.options import LoadOptions, load_options
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence


def layout(*dtypes: str) -> KVLayout:
    layers = [LayerKV(kv_heads=4, head_dim=128, dtype=dtype) for dtype in dtypes]
    groups = KVGroups(of_layer=dict.fromkeys(range(len(layers)), 0))
    return KVLayout(layers=dict(enumerate(layers)), readers={}, groups=groups)


LAYOUT = layout(*28 * ["bf16"])
SPEC = UniformDecoder(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
).spec(TensorNames())
SHAPE = SimpleNamespace(max_position=32768, is_encoder=False)


def options(**values: object) -> LoadOptions:
    return load_options(**values)


def budget(free_gib: float, allowed_gib: float = 0) -> MemoryBudget:
    return MemoryBudget(
        free=int(free_gib * GIB), allowed=int(allowed_gib * GIB), weights=5 * GIB, scratch=GIB // 4
    )


def linears_of(spec):
    return {
        weight.name: LinearWeight(
            scheme="int8", rows=weight.shape[0], columns=weight.shape[1], weights=0
        )
        for weight in spec.weights()
        if len(weight.shape) == 2
    }


def prefill_of(rows):
    return InputShape(decode_rows=0, prefill_rows=rows, sequences=1, table_stride=1, wanted=1)


def test_a_block_of_32_tokens_takes_what_its_keys_and_values_take():
    assert LAYOUT.block_bytes() == [28 * 2 * 4 * 32 * 128 * 2]


def test_an_int8_cache_takes_little_more_than_half():
    quantized = layout(*28 * ["int8"])
    assert 0.5 < sum(quantized.block_bytes()) / sum(LAYOUT.block_bytes()) < 0.54


def test_layers_have_heads_of_their_own_and_some_read_those_of_another():
    first, second = SPEC.layers
    wide = replace(first.mixer, num_kv_heads=1, head_dim=512)
    layers = (replace(first, mixer=wide), second)
    groups = KVGroups(of_layer={0: 0, 1: 0})
    other = layout_for(replace(SPEC, layers=layers), "bf16", groups)
    own = [layer.parts(1)[-1] for layer in other.layers.values()]
    assert own == [2 * 32 * 512 * 2, 2 * 32 * 2 * 64 * 2]
    assert other.block_bytes() == [sum(own)]
    reading = (first, replace(second, mixer=replace(second.mixer, kv_of_layer=0)))
    shared = layout_for(replace(SPEC, layers=reading), "bf16", groups)
    assert (dict(shared.readers), set(shared.layers)) == ({1: 0}, {0})
    assert shared.block_bytes() == [other.layers[1].parts(1)[-1]]


def test_layers_of_whole_texts_share_the_memory_of_one_and_nothing_is_kept_of_it():
    whole = [replace(layer, mixer=replace(layer.mixer, is_causal=False)) for layer in SPEC.layers]
    spec = replace(SPEC, layers=tuple(whole))
    shared = layout_for(spec, "bf16", groups_of(spec, options()))
    assert (dict(shared.readers), set(shared.layers)) == ({1: 0}, {0})
    encoder = SimpleNamespace(max_position=512, is_encoder=True)
    assert choose_num_blocks(budget(20), shared, encoder, options()) == 1


def test_what_is_left_goes_to_the_cache():
    blocks = choose_num_blocks(budget(20), LAYOUT, SHAPE, options())
    left = 20 * GIB - 5 * GIB - GIB // 4 - MARGIN_BYTES
    assert blocks == left // sum(LAYOUT.block_bytes())


def test_no_more_blocks_are_taken_than_the_sequences_can_fill():
    chosen = options(max_context=4096, max_sequences=2)
    assert choose_num_blocks(budget(100), LAYOUT, SHAPE, chosen) == 2 * 4096 // 32


def test_a_total_that_is_allowed_bounds_the_cache():
    assert choose_num_blocks(budget(100, allowed_gib=8), LAYOUT, SHAPE, options()) == (
        choose_num_blocks(budget(8), LAYOUT, SHAPE, options())
    )


def test_a_cache_that_does_not_fit_is_refused_with_what_fits():
    asked = options(kv_gib=40)
    with pytest.raises(DeviceError, match=r"40\.00 GiB was asked for; .* which hold \d+ tokens"):
        choose_num_blocks(budget(20), LAYOUT, SHAPE, asked)


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded():
    with pytest.raises(DeviceError, match=r"needs .* 4\.00 GiB are free") as error:
        budget(4).check()
    assert "--vram" in error.value.hint


def test_an_estimate_counts_the_heads_and_the_angles_of_each_layer():
    spec, tokens = mixed(), 64
    chosen = options(max_context=tokens)
    found = estimate_memory(ModelFacts(spec=spec), "int8", on_gpu=True, context_tokens=tokens)
    windowed, full = 2 * 64, 2 * 128  # and nothing for the layer that reads another's keys
    assert found.kv_bytes == tokens * (windowed + full) * 2
    plans = StepPlans(spec, {}, H200, chosen)
    assert plans.rotary_bytes == tokens * (64 + 32) * 4
    assert plans.counters_bytes == decode_counters_bytes(
        bucket_of(chosen.batch.max_sequences + MAX_DRAFTS), plans.attention_kinds[0].shape
    )


@pytest.mark.parametrize("rows", [1, 40, 300])
def test_what_experts_add_has_room_behind_what_the_mlp_beside_them_adds(rows):
    spec, linears = beside(), linears_of(beside())
    plans = StepPlans(spec, linears, H200, options())
    shape = prefill_of(rows)
    down = linears[spec.layers[0].mlp.down.weight.name]
    dense = rows * down.rows * 4
    if rows <= BATCH_ROWS:
        dense = plans.plan(down, rows, quantized=False).output_bytes
    assert plans.scratch(shape).beside >= max(dense, 2 * rows * spec.hidden_size * 4)


@pytest.mark.parametrize("rows", [1, 300])
def test_what_layers_are_told_has_room_beside_the_products_that_it_is_made_of(rows):
    plans = StepPlans(told(), linears_of(told()), H200, options())
    found, columns = plans.scratch(prefill_of(rows)), 2 * 128
    assert found.told == rows * columns * 4
    assert found.sums >= rows * columns * 4
    assert found.activations >= rows * columns * 2


def test_a_layer_with_a_window_is_split_into_what_it_sees():
    spec = mixed()
    plans = StepPlans(spec, {}, H200, options(max_context=512))
    windowed, full = (plans.attention_kinds[layer] for layer in (0, 1))
    assert (windowed.window, full.window) == (3, 0)
    assert plans.decode_splits(1, windowed) == 2
    assert plans.decode_splits(1, full) == 512 // 64


def test_states_take_at_most_half_of_what_the_weights_leave(caplog: pytest.LogCaptureFixture):
    spec = read_checkpoint({**shape_of("qwen3_5"), "architectures": ["Qwen3_5ForCausalLM"]})
    asked = options(max_sequences=64)
    whole = states_of(spec, asked)
    assert (whole.num_slots, whole.num_checkpoints) == (64 + 1 + 16, 16)
    assert with_states_that_fit(spec, asked, 2 * whole.length_bytes) is asked
    assert not caplog.messages
    fewer = with_states_that_fit(spec, asked, 2 * whole.length_bytes - 1)
    assert fewer.batch.max_sequences == 32
    assert "32 sequences run at once, not 64" in caplog.messages[0]
    assert with_states_that_fit(spec, asked, -1).batch.max_sequences == 1
    assert with_states_that_fit(SPEC, asked, 0) is asked  # it has no states


MATRIX = LinearWeight(scheme="int8", rows=1024, columns=1024, weights=256)


def test_weights_kept_for_prompts_take_no_more_than_an_eighth_of_what_the_model_leaves() -> None:
    limit = kept_limit_bytes(budget(40), LAYOUT, options(), 100 * GIB)
    assert limit == budget(40).for_cache // 8
    assert kept_limit_bytes(budget(40), LAYOUT, options(), GIB) == GIB
    assert kept_limit_bytes(budget(6), LAYOUT, options(kv_gib=0.2), GIB) < GIB // 10
    assert kept_limit_bytes(budget(4), LAYOUT, options(), GIB) == 0


def test_a_cache_that_was_asked_for_goes_before_kept_weights() -> None:
    spared = budget(40).for_cache - 34 * GIB
    assert kept_limit_bytes(budget(40), LAYOUT, options(kv_gib=34), 100 * GIB) == spared


def test_weights_are_kept_all_or_none_where_that_is_asked() -> None:
    assert kept_limit_bytes(budget(6), LAYOUT, options(prefill_weights="keep"), GIB) == GIB
    assert kept_limit_bytes(budget(40), LAYOUT, options(prefill_weights="make"), GIB) == 0
    with pytest.raises(DeviceError, match="of weights kept for prompts"):
        replace(budget(6), kept=GIB).check()


def test_matrices_are_kept_in_order_as_far_as_there_is_room() -> None:
    room = 2 * (1024 * 1024 + 4096)
    assert kept_of([MATRIX] * 3, room) == [MATRIX] * 2
    assert kept_of([MATRIX] * 3, room - 1) == [MATRIX]


def test_few_rows_are_turned_only_where_every_matrix_of_the_layers_is_kept() -> None:
    layers = [replace(MATRIX, weights=256 * number) for number in range(1, 4)]
    head, room = replace(MATRIX, weights=1 << 20), 3 * (1024 * 1024 + 4096)
    assert KeptWeights(FullGpu(), layers, room).keeps(layers)
    assert KeptWeights(FullGpu(), [*layers, head], room).keeps(layers)
    assert not KeptWeights(FullGpu(), [*layers[1:], head], room).keeps(layers)  # as many of them
    assert not KeptWeights(FullGpu(), layers, room - 1).keeps(layers)


class FullGpu:
    def allocate(self, length_bytes: int) -> object:
        raise OutOfMemoryError(f"no {length_bytes} bytes")


class OutOfMemoryError(DeviceError):
    is_out_of_memory = True


def test_kept_weights_are_done_without_where_their_memory_is_gone() -> None:
    kept = KeptWeights(FullGpu(), [MATRIX], 2 << 20)
    assert kept.length_bytes > 0
    assert kept.take()
    kept.make(None, None)
    assert kept.of(MATRIX) is None
    assert kept.length_bytes == kept.taken_bytes == 0
    assert not kept.give_up()


def test_a_large_gpu_takes_longer_steps_where_nobody_set_their_length() -> None:
    def tokens(total_gib: int, spec: object = SPEC, **values: object) -> int:
        own = with_long_steps(spec, options(**values), total_gib * GIB)
        return own.batch.max_batch_tokens

    assert (tokens(80), tokens(24)) == (8192, 2048)
    assert tokens(80, max_batch_tokens=512) == 512
    assert tokens(80, vram_gib=16) == tokens(80, deterministic=True) == 2048
    assert tokens(80, lora_gib=1) == 2048
    windows = SPEC.layers[0]
    windows = replace(windows, mixer=replace(windows.mixer, window=100))
    assert tokens(80, replace(SPEC, layers=(windows,))) == 2048


class OtherRank:
    """A link to one other rank, by what that one has."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def least(self, numbers: Sequence[int]) -> list[int]:
        return [min(pair) for pair in zip(numbers, self._numbers, strict=True)]


def test_all_ranks_take_longer_steps_or_none_does() -> None:
    def agreed(other_gib: int, edges: object = None, **values: object) -> tuple[int, int]:
        part: Any = SimpleNamespace(link=OtherRank(4, other_gib * GIB), edges=edges)
        own = with_agreement(part, SPEC, options(tensor_parallel=2, **values), 80 * GIB)
        return own.batch.max_sequences, own.batch.max_batch_tokens

    assert agreed(80) == (4, 8192)
    assert agreed(24) == agreed(80, vram_gib=16) == (4, 2048)
    assert agreed(80, edges=SimpleNamespace()) == (4, 2048)
