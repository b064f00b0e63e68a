from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from zse.errors import UsageError
from zse.quantize.convert import convert_model
from zse.quantize.options import ConversionFields, ConversionOptions, conversion_options

if TYPE_CHECKING:
    from pathlib import Path


def test_keywords_for_type_checkers_are_those_of_the_record() -> None:
    names = {field.name for field in fields(ConversionOptions)}
    assert ConversionFields.__annotations__.keys() | {"quantization"} == names


def test_an_option_that_does_not_exist_is_named_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no option groupsize"):
        convert_model(tmp_path / "absent", tmp_path / "m.zse", groupsize=32)  # type: ignore[call-arg]


def test_a_scheme_by_name_is_not_the_default_even_where_both_are_int4() -> None:
    assert conversion_options(None).storage().is_default
    assert not conversion_options("INT4").storage().is_default


def test_a_home_folder_is_found_in_every_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    recipe = ConversionOptions(medusa="~/heads", merge_lora=["~/adapter"]).recipe(None, threads=2)
    assert recipe.medusa == tmp_path / "heads"
    assert recipe.adapters == (tmp_path / "adapter",)
    assert recipe.threads == 2


def test_a_target_and_a_scheme_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="a target chooses the scheme"):
        ConversionOptions(target_bits=3.5, group_size=64).recipe(None, threads=0)
