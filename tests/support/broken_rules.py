"""Proves which rule an error names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.errors import BrokenRule, ZSEError


@contextmanager
def breaks(
    rule: BrokenRule, match: str | None = None, *, error: type[ZSEError] | None = None
) -> Iterator[pytest.ExceptionInfo[ZSEError]]:
    """Expect an error of a rule: of the class that the rule makes, unless another is named."""
    with pytest.raises(error or type(rule("")), match=match) as caught:
        yield caught
    assert caught.value.rule is rule
