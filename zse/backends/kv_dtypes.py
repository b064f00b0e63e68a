"""Which type each layer keeps its keys and values in.

One type was asked for, and nearly all layers have it. In four bits a key has no room for a large
constant of its model (``zse.backends.key_factors``): every sixteenth of what a column moves by is
then a step. Layers that have some keep eight bits, where dividing by it is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.key_factors import NARROW_KV_DTYPES
from zse.backends.resident import cached_attentions
from zse.errors import UnsupportedModelError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping

    from zse.models.spec import ModelSpec

TURNED_COLUMNS = 32
"""Columns of a key that are turned together before they are kept in four bits."""
HEAD_DIMS = (64, 128, 256)
"""Head widths that are kept in four bits."""
LARGEST_FACTOR = 2.0
"""Of a layer that keeps four bits: see ``docs/quantization.md`` for what it was measured by."""


def is_narrow(kv_dtype: str) -> bool:
    """Whether keys are whole numbers with scales, and divided by factors."""
    return kv_dtype in NARROW_KV_DTYPES


def dtypes_of(
    spec: ModelSpec, kv_dtype: str, factors: Mapping[int, array[float]] | None = None
) -> dict[int, str]:
    """Return what each layer that keeps keys and values keeps them in, by its number.

    Args:
        spec: The model.
        kv_dtype: What was asked for.
        factors: Of keys, by layer; None where the file's biases were not read, for an estimate.

    Raises:
        UnsupportedModelError: Four bits were asked for, and a layer is not kept so.
    """
    layers = cached_attentions(spec)
    if kv_dtype != "int4":
        return dict.fromkeys(layers, kv_dtype)
    check_int4(spec)
    large = {index for index, values in (factors or {}).items() if max(values) > LARGEST_FACTOR}
    return {index: "int8" if index in large else "int4" for index in layers}


def named(dtypes: Mapping[int, str]) -> str:
    """Return a name that only pools share whose layers keep the same types."""
    kept = sorted(set(dtypes.values()))
    if len(kept) < 2:
        return "".join(kept) or "none"
    other = [str(index) for index, dtype in sorted(dtypes.items()) if dtype != kept[0]]
    return f"{kept[0]}+{'+'.join(kept[1:])}@{','.join(other)}"


def check_int4(spec: ModelSpec) -> None:
    """Refuse, by name, what is not kept in four bits."""
    for index, attention in cached_attentions(spec).items():
        if attention.latent is not None:
            found = "it keeps a latent, of which everything is made"
        elif attention.head_dim not in HEAD_DIMS:
            widths = ", ".join(map(str, HEAD_DIMS))
            found = f"its heads have {attention.head_dim} columns, expected one of {widths}"
        elif attention.softcap is not None:
            found = "its scores are capped, and no kernel does both"
        else:
            continue
        raise UnsupportedModelError(
            f"layer {index} keeps no keys and values in int4: {found}",
            hint="Choose --kv-dtype int8, or leave it out.",
        )
