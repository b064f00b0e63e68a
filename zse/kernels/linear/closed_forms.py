"""The forms of products of one token that begin the norm behind them, or that read one begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.layout import ACTIVATION_GROUP
from zse.kernels.linear.definitions import GEMV_CLOSED, GEMV_INT4, GEMV_INT8
from zse.kernels.variant import Variant

if TYPE_CHECKING:
    from collections.abc import Iterable

CLOSED_ROWS = 1
"""Most tokens of such products: of a 7B on an H200 a step of one gains 41 us of 1,487, one of eight
loses 20 to 70 of 1,948."""
_SCHEMES = {GEMV_INT4: "int4", GEMV_INT8: "int8"}


def closed_form(form: Variant, *, closes: bool) -> Variant | None:
    """Return the twin of a form; None where it has none.

    Args:
        form: Of a product of int8 activations.
        closes: Whether it begins the norm behind it; else it reads one that is begun.
    """
    constants = dict(form.constants)
    scheme = _SCHEMES.get(form.kernel)
    group = constants.pop("GROUP", ACTIVATION_GROUP)
    if scheme is None or group != ACTIVATION_GROUP or int(constants["ROWS"]) > CLOSED_ROWS:
        return None
    return Variant(
        kernel=GEMV_CLOSED,
        constants=(
            ("SCHEME", scheme), ("BEGUN", not closes), ("CLOSES", closes), *constants.items(),
        ),
        num_warps=form.num_warps,
        types=(("weight_scales", "*fp32"),) if scheme == "int8" else (),
    )  # fmt: skip


def closed_forms(forms: Iterable[Variant]) -> list[Variant]:
    """Return the twins of all forms that have some."""
    found = [closed_form(form, closes=closes) for form in forms for closes in (True, False)]
    return [form for form in found if form is not None]
