"""Operations that a backend lacks: models that need one are refused when they are opened."""

from __future__ import annotations

from typing import Any, NoReturn

from zse.errors import UnsupportedModelError


def _refuse(*_: Any) -> NoReturn:
    raise UnsupportedModelError("this backend does not have an operation that the model needs")


class WithoutDelta:
    """No linear attention."""

    delta = staticmethod(_refuse)
