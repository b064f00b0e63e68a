"""Modules of a checkpoint as rows of a model's matrices: their names, their places, their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from family_shapes import shape_of
from transformers import AutoConfig

from zse.models.families import read_checkpoint
from zse.models.lora.config import parse_config
from zse.models.lora.modules import module_of, places_at_run_time, places_in_files
from zse.models.lora.row_places import reordered_rows, rows_in_order
from zse.models.weights import Order, RowGroups, RowHalves, RowOrder
from zse.quantize.source_rows import reordered

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec

ORDERS: list[tuple[Order, int]] = [
    (RowHalves(head_rows=10, turning=6), 30),
    (RowGroups(num_groups=3, sizes=(4, 2)), 18),
    (RowOrder(view=(2, 3, 4, 2), axes=(0, 1, 3, 2)), 48),
    (RowOrder(view=(4, 2, 3), axes=(2, 0, 1)), 48),
]


def spec_of(family: str, architecture: str) -> ModelSpec:
    config = AutoConfig.for_model(family, **shape_of(family)).to_dict()
    return read_checkpoint(config | {"architectures": [architecture]})


@pytest.mark.parametrize(("order", "num_rows"), ORDERS)
def test_rows_are_put_in_the_order_that_conversion_puts_them_in(
    order: Order, num_rows: int
) -> None:
    rows = torch.arange(num_rows * 3, dtype=torch.int16).view(num_rows, 3)
    expected = reordered(rows, order)
    assert [int(row) // 3 for row in expected[:, 0]] == rows_in_order(order, num_rows)
    assert reordered_rows(rows.numpy().tobytes(), 6, order) == expected.numpy().tobytes()


def test_the_modules_of_a_layer_are_the_rows_of_four_matrices() -> None:
    spec = spec_of("llama", "LlamaForCausalLM")
    places = places_at_run_time(spec)
    assert len(places) == 7 * len(spec.layers)
    query, value = (places[f"model.layers.1.self_attn.{name}_proj"] for name in "qv")
    assert query.weight is value.weight
    assert query.first_row == 0
    assert value.first_row == sum(one.rows for one in query.weight.sources[:2])


def test_a_router_is_merged_and_takes_nothing_at_run_time() -> None:
    spec = spec_of("mixtral", "MixtralForCausalLM")
    at_run_time, in_files = places_at_run_time(spec), places_in_files(spec)
    routers = {f"model.layers.{layer.index}.block_sparse_moe.gate" for layer in spec.layers}
    assert in_files.keys() - at_run_time.keys() == routers


def test_an_expert_is_some_rows_of_its_layers_stack() -> None:
    places = places_at_run_time(spec_of("mixtral", "MixtralForCausalLM"))
    expert = "model.layers.1.block_sparse_moe.experts.2"
    gate, up = places[f"{expert}.w1"], places[f"{expert}.w3"]
    assert gate.weight is up.weight
    assert gate.first_row == 2 * 2 * gate.source.rows
    assert up.first_row == gate.first_row + gate.source.rows


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.q_proj",
        "base_model.model.layers.0.self_attn.q_proj",
        "base_model.model.model.language_model.layers.0.self_attn.q_proj",
        "base_model.model.language_model.model.layers.0.self_attn.q_proj",
    ],
)
def test_a_module_is_found_however_the_whole_is_called(name: str) -> None:
    places = places_at_run_time(spec_of("llama", "LlamaForCausalLM"))
    assert module_of(name, places) == "model.layers.0.self_attn.q_proj"


def test_the_first_pattern_that_ends_a_name_counts() -> None:
    data = b"""{"peft_type": "LORA", "r": 4, "lora_alpha": 8,
        "rank_pattern": {"0.self_attn.q_proj": 2, "q_proj": 3, "^lm": 5},
        "alpha_pattern": {"attn.q_proj": 100, "self_attn\\\\.q_proj": 6}}"""
    config = parse_config(data, "here", max_rank=8)
    assert config.rank_of("model.layers.0.self_attn.q_proj") == 2
    assert config.rank_of("model.layers.1.self_attn.q_proj") == 3
    assert config.rank_of("lm") == 5
    assert config.rank_of("the.lm") == 4
    assert config.scale_of("model.layers.0.self_attn.q_proj") == 3
    assert config.scale_of("model.layers.0.mlp.up_proj") == 2
