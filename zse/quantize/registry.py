"""From a scheme's name in the file to its implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.format.spec import Scheme
from zse.quantize.int4 import Int4
from zse.quantize.int8 import Int8
from zse.quantize.nf4 import NF4
from zse.quantize.plain import Plain

if TYPE_CHECKING:
    from zse.quantize.scheme import WeightScheme


def create_scheme(scheme: Scheme, group_size: int = 0) -> WeightScheme:
    """Return the implementation of a scheme; ``group_size`` matters to int4 and nf4 only."""
    if scheme is Scheme.INT4:
        return Int4(group_size=group_size)
    if scheme is Scheme.NF4:
        return NF4(group_size=group_size)
    if scheme is Scheme.INT8:
        return Int8()
    return Plain(scheme=scheme)
