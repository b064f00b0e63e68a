from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zse.errors import UsageError
from zse.format.schemes import Scheme
from zse.models.spec import WeightGroup
from zse.models.storage import Storage
from zse.models.weights import Source, WeightKind, WeightSpec


def make_source(kind: WeightKind, columns: int = 256, rows: int = 64) -> WeightSpec:
    shape = (columns,) if kind in ("norm", "bias") else (rows, columns)
    return WeightSpec(
        name="a.weight", shape=shape, kind=kind, sources=(Source(name="a", shape=shape),)
    )


@pytest.mark.parametrize(
    ("quantization", "columns", "expected"),
    [
        ("int4", 256, (Scheme.INT4, 128)),
        ("int4", 192, (Scheme.INT4, 64)),
        ("int4", 96, (Scheme.INT4, 32)),
        ("int4", 80, (Scheme.INT8, 0)),
        ("int3", 256, (Scheme.INT3, 64)),
        ("int3", 96, (Scheme.INT3, 32)),
        ("int2", 256, (Scheme.INT2, 32)),
        ("int2", 80, (Scheme.INT8, 0)),
        ("nf4", 256, (Scheme.NF4, 64)),
        ("nf4", 96, (Scheme.NF4, 32)),
        ("nl4", 96, (Scheme.NL4, 16)),
        ("nl4", 80, (Scheme.INT8, 0)),
        ("mxfp4", 256, (Scheme.MXFP4, 32)),
        ("mxfp4", 80, (Scheme.INT8, 0)),
        ("int8", 80, (Scheme.INT8, 0)),
        ("fp16", 256, (Scheme.FP16, 0)),
        ("bf16", 256, (Scheme.BF16, 0)),
    ],
)
def test_linear_takes_the_largest_group_that_divides_it(
    quantization: str, columns: int, expected: tuple[Scheme, int]
) -> None:
    options = Storage(quantization=quantization)
    planned = options.plan_tensor(make_source("linear", columns))
    assert (planned.scheme, planned.group_size) == expected


def test_group_size_asked_for_is_an_upper_bound() -> None:
    options = Storage(quantization="int4", group_size=32)
    assert options.plan_tensor(make_source("linear")).group_size == 32


@pytest.mark.parametrize(
    ("options", "rows", "columns", "expected"),
    [
        ({}, 320, 256, (Scheme.INT8, 0)),
        ({}, 512, 256, (Scheme.INT8, 0)),
        ({}, 513, 256, (Scheme.INT4, 64)),
        ({}, 513, 96, (Scheme.INT4, 32)),
        ({}, 513, 80, (Scheme.INT8, 0)),
        ({"attention": "same"}, 320, 256, (Scheme.INT4, 128)),
        ({"attention": "int8"}, 1024, 256, (Scheme.INT8, 0)),
        ({"group_size": 128}, 320, 256, (Scheme.INT4, 128)),
        ({"group_size": 128, "attention": "int8"}, 320, 256, (Scheme.INT8, 0)),
        ({"quantization": "nf4"}, 320, 256, (Scheme.NF4, 64)),
        ({"quantization": "nf4", "attention": "int8"}, 320, 256, (Scheme.INT8, 0)),
        ({"quantization": "bf16"}, 320, 256, (Scheme.BF16, 0)),
    ],
)
def test_small_queries_keys_and_values_are_int8_beside_int4_that_nobody_cut(
    options: dict[str, Any], rows: int, columns: int, expected: tuple[Scheme, int]
) -> None:
    planned = Storage(**options).plan_tensor(make_source("attention", columns, rows))
    assert (planned.scheme, planned.group_size) == expected


def test_every_eighth_layer_has_small_groups_instead() -> None:
    source = make_source("attention", rows=320)
    found = [
        Storage().plan_tensor(replace(source, name=f"layers.{index}.qkv.weight"))
        for index in range(24)
    ]
    narrow = [index for index, one in enumerate(found) if one.scheme is Scheme.INT4]
    assert narrow == [7, 15, 23]
    assert {found[index].group_size for index in narrow} == {64}
    asked = Storage(attention="int8").plan_tensor(replace(source, name="layers.7.qkv.weight"))
    assert asked.scheme is Scheme.INT8


def test_chosen_int8_is_no_warning() -> None:
    plan = [WeightGroup(name="layers.0", weights=(make_source("attention"), make_source("linear")))]
    assert not Storage().count_int8_instead(plan).matrices


@pytest.mark.parametrize(
    ("quantization", "lm_head", "expected"),
    [
        ("int4", "auto", Scheme.INT8),
        ("nf4", "auto", Scheme.INT8),
        ("mxfp4", "auto", Scheme.INT8),
        ("int8", "auto", Scheme.INT8),
        ("fp16", "auto", Scheme.FP16),
        ("bf16", "auto", Scheme.BF16),
        ("int4", "bf16", Scheme.BF16),
        ("bf16", "int8", Scheme.INT8),
    ],
)
def test_head_scheme(quantization: str, lm_head: str, expected: Scheme) -> None:
    options = Storage(quantization=quantization, lm_head=lm_head)
    assert options.plan_tensor(make_source("head")).scheme is expected


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ("int4", Scheme.INT8),
        ("nf4", Scheme.INT8),
        ("int8", Scheme.INT8),
        ("fp16", Scheme.FP16),
        ("bf16", Scheme.BF16),
    ],
)
def test_untied_embedding_is_int8_beside_quantized_layers(
    quantization: str, expected: Scheme
) -> None:
    options = Storage(quantization=quantization, lm_head="bf16")
    assert options.plan_tensor(make_source("embed")).scheme is expected


@pytest.mark.parametrize("kind", ["norm", "bias"])
@pytest.mark.parametrize("quantization", ["int4", "bf16"])
def test_norms_and_biases_are_float32(kind: WeightKind, quantization: str) -> None:
    options = Storage(quantization=quantization)
    assert options.plan_tensor(make_source(kind)).scheme is Scheme.FP32


@pytest.mark.parametrize(
    "bad",
    [
        {"quantization": "int5"},
        {"quantization": "int4", "group_size": 48},
        {"quantization": "int8", "group_size": 64},
        {"quantization": "mxfp4", "group_size": 64},
        {"quantization": "nl4", "group_size": 64},
        {"lm_head": "int4"},
        {"attention": "int4"},
    ],
)
def test_option_without_meaning_is_a_usage_error(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Storage(**bad)  # type: ignore[arg-type]


def test_matrices_that_became_int8_are_counted_with_their_widths() -> None:
    widths = {"linear": (256, 200, 200, 80), "embed": (200,), "norm": (200,)}
    sources = [make_source(kind, width) for kind, found in widths.items() for width in found]
    plan = [WeightGroup(name="layers.0", weights=tuple(sources))]
    found = Storage(quantization="int4", group_size=64).count_int8_instead(plan)
    assert found.matrices == 3
    assert found.warnings == (
        "3 of 4 matrices are INT8, not INT4: no group (64, 32) divides their width (80, 200).",
    )
    for quantization in ("int8", "bf16"):
        assert not Storage(quantization=quantization).count_int8_instead(plan).matrices
