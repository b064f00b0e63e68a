"""Which checkpoints can be calibrated: told before any work begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.errors import UnsupportedModelError, UsageError
from zse.quantize.calibrate.grids import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.models.spec import ModelSpec
    from zse.quantize.checkpoint import Checkpoint


def check_calibrated(quantization: str) -> None:
    """Refuse a scheme that data does not help.

    Raises:
        UsageError: It is one.
    """
    if quantization not in SCHEMES:
        names = ", ".join(sorted(SCHEMES))
        raise UsageError(
            f"{quantization} weights are rounded one by one, whatever a text says",
            hint=f"Leave --calibrate out, or use one of {names}.",
        )


def check_walkable(checkpoint: Checkpoint) -> None:
    """Refuse a model that no text is taken through, layer by layer.

    Raises:
        UnsupportedModelError: It has something else than layers of attention, or it came quantized.
    """
    weights = (weight for group in checkpoint.plan for weight in group.weights)
    if any(weight.packing is not None for weight in weights):
        raise UnsupportedModelError(
            "this checkpoint is quantized already, so there is nothing left to calibrate",
            hint="Convert it without --calibrate, or calibrate the checkpoint it was made of.",
        )
    for where, what in _obstacles(checkpoint.spec):
        raise UnsupportedModelError(
            f"{where} of this model has {what}, through which no text is taken for a calibration",
            hint="Dense decoders and mixtures of experts with plain attention can be calibrated; "
            "convert this one without --calibrate.",
        )


def _obstacles(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    if spec.is_encoder:
        yield "the head", "vectors of whole texts"
    if spec.embedding.layer_inputs is not None:
        yield "the embedding", "rows for every layer"
    for layer in spec.layers:
        where, mixer = f"layer {layer.index}", layer.mixer
        if not is_attention(mixer):
            yield where, "linear attention"
        elif mixer.latent is not None:
            yield where, "attention over a latent"
        elif mixer.kv_of_layer is not None:
            yield where, "keys of another layer"
