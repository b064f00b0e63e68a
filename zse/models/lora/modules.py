"""Which rows of which of a model's matrices a module of the checkpoint is: PEFT names modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.adapters import adapted_matrices
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from zse.models.spec import ModelSpec
    from zse.models.weights import Source, WeightSpec

_PREFIX = "base_model.model."
"""How PEFT begins every name."""
_OF_TEXT = ("model.language_model.", "language_model.")
"""How names begin where the text model is a part of several."""
_MERGED_KINDS = frozenset({"linear", "attention", "experts", "gate"})


@record
class ModulePlace:
    """The rows of a module's matrix."""

    weight: WeightSpec
    first_row: int
    source: Source


def places_at_run_time(spec: ModelSpec) -> dict[str, ModulePlace]:
    """Return the modules that steps add adapters to, by name."""
    return _places(matrix.linear.weight for matrix in adapted_matrices(spec))


def places_in_files(spec: ModelSpec) -> dict[str, ModulePlace]:
    """Return the modules that adapters can be merged into, by name."""
    return _places(weight for weight in spec.weights() if weight.kind in _MERGED_KINDS)


def module_of(name: str, places: Mapping[str, ModulePlace]) -> str:
    """Return what the model calls a module of an adapter: of a bare model, or of a part of one."""
    bare = name.removeprefix(_PREFIX)
    text = next((bare.removeprefix(part) for part in _OF_TEXT if bare.startswith(part)), bare)
    names = (bare, text, f"model.{text}", f"model.{bare}")
    return next((one for one in names if one in places), bare)


def _places(weights: Iterable[WeightSpec]) -> dict[str, ModulePlace]:
    found: dict[str, ModulePlace] = {}
    for weight in weights:
        first_row = 0
        for source in weight.pieces():
            if len(source.shape) == 2 and not source.is_flat:
                name = source.name.removesuffix(".weight")
                found[name] = ModulePlace(weight=weight, first_row=first_row, source=source)
            first_row += source.rows
    return found
