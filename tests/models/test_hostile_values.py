"""A config.json may say anything: what comes out of reading it is a model, or an error of zse."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from family_shapes import shape_of
from model_pairs import ARCHITECTURES, CONFIG_CLASSES

from zse.errors import FormatError, UnsupportedModelError
from zse.models.families import read_checkpoint, read_header

HOSTILE: tuple[Any, ...] = (
    "text", "", -1, 0, 2**40, True, float("nan"), float("inf"), [], [[1]], {"a": {"b": 1}},
)  # fmt: skip
CONTEXT = {"transformers_version", "architectures", "model_type"}


def configuration(family: str) -> dict[str, Any]:
    config = CONFIG_CLASSES[family](**shape_of(family))
    return config.to_dict() | {"architectures": [ARCHITECTURES[family]]}


@pytest.mark.parametrize("family", sorted(CONFIG_CLASSES))
def test_one_hostile_value_gives_a_model_or_a_refusal(family: str) -> None:
    values = configuration(family)
    names = set(read_checkpoint(values).header.get("config", values)) - CONTEXT
    refused = 0
    for name in sorted(names & set(values)):
        for hostile in HOSTILE:
            try:
                read_checkpoint({**values, name: hostile})
            except UnsupportedModelError:
                refused += 1
    assert refused > len(HOSTILE)


@pytest.mark.parametrize("family", ["gemma4", "gpt_oss", "qwen3_5_moe"])
def test_a_header_with_a_hostile_value_breaks_the_format(family: str) -> None:
    header = read_checkpoint(configuration(family)).header
    for name in header["config"]:
        for hostile in HOSTILE:
            with suppress(FormatError):
                read_header({**header, "config": {**header["config"], name: hostile}})
