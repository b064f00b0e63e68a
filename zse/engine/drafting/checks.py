"""Whether a model can guess for itself as it is asked to; looked at before its weights are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.errors import UnsupportedModelError, UsageError
from zse.models.guess import stored_guesses
from zse.models.medusa import stored_heads

if TYPE_CHECKING:
    from zse.format.spec import ZSEHeader
    from zse.models.spec import GuessSpec, MedusaSpec, ModelSpec
    from zse.options import LoadOptions

OWN_WAYS = ("mtp", "medusa", "early-exit")
"""Values of ``--speculate`` by which a model guesses for itself."""


def check_own_guesses(header: ZSEHeader, spec: ModelSpec, options: LoadOptions) -> None:
    """Refuse a model that is to guess for itself and cannot; others pass.

    Raises:
        UsageError: The file has no head, or the model has too few layers.
        UnsupportedModelError: The device computes no such guesses, or these layers do not.
        FormatError: A head's tensor is missing, or of another shape.
    """
    asked = options.speculation.speculate
    if asked not in OWN_WAYS or spec.is_encoder:
        return
    if asked == "mtp":
        head_of(header, spec)
    elif asked == "medusa":
        medusa_of(header, spec)
    else:
        check_first_layers(spec, options.speculation.early_exit_layers)


def head_of(header: ZSEHeader, spec: ModelSpec) -> GuessSpec:
    """Return the head that a model guesses by: the first one of its file."""
    if heads := stored_guesses(header, spec):
        return heads[0]
    raise UsageError(
        "the model's file has no head that guesses further tokens",
        hint="Convert it again from a checkpoint that has one (tensors mtp.*), or choose "
        "--speculate suffix.",
    )


def medusa_of(header: ZSEHeader, spec: ModelSpec) -> tuple[MedusaSpec, ...]:
    """Return the heads of Medusa that a model guesses by: all of its file."""
    if heads := stored_heads(header, spec):
        return heads
    raise UsageError(
        "the model's file has no heads of Medusa",
        hint="Convert it again with --medusa FOLDER, or choose --speculate suffix.",
    )


def check_first_layers(spec: ModelSpec, num_layers: int) -> None:
    """Refuse first layers that are all there are, or that guesses would change."""
    total = len(spec.layers)
    if total < 2 or num_layers >= total:
        raise UsageError(
            f"{max(1, num_layers)} first layers are to guess, and the model has {total}",
            hint="Choose fewer: --early-exit-layers.",
        )
    if not all(is_attention(layer.mixer) for layer in spec.layers):
        raise UnsupportedModelError(
            "the first layers of this model have states, which guesses would move on",
            hint="Choose --speculate mtp where the file has such a head, or suffix.",
        )
