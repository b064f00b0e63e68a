"""Values of a ``config.json`` that mean nothing are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from family_shapes import shape_of

from zse.errors import UnsupportedModelError
from zse.models.families import read_checkpoint


@pytest.mark.parametrize("value", ["text", float("inf"), [], True])
@pytest.mark.parametrize("name", ["sliding_window", "dtype"])
def test_a_window_or_dtype_of_another_kind_is_refused(name: str, value: Any) -> None:
    if (name, value) == ("dtype", []):
        value = [[1]]
    config = shape_of("mistral", architectures=["MistralForCausalLM"], **{name: value})
    with pytest.raises(UnsupportedModelError, match=name):
        read_checkpoint(config)
