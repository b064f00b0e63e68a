"""Which models have their rows multiplied with turned matrices: many rows, or every row alone.

A turned product is a sum of integers, so it has the same bits by any kernel: where all matrices are
kept turned, rows whose bits may depend on nothing else take whichever is the quickest for as many
as there are. What such rows cannot have is a way that only some steps go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions


def turns_matrices(spec: ModelSpec, options: LoadOptions) -> bool:
    """Whether products of many rows, or of rows that are computed alone, may be of 8 bits.

    Vectors of texts are compared, not sampled from: an encoder stays in 16 bits unless asked.
    """
    device = options.device
    if device.exact_activations or (device.deterministic and not _is_plain(spec, options)):
        return False
    wanted = {"8": True, "16": False}
    return wanted.get(device.prefill_precision, not spec.is_encoder)


def _is_plain(spec: ModelSpec, options: LoadOptions) -> bool:
    """Whether rows of a model go one way in all steps where all its matrices are kept turned.

    Rows with adapters are rounded elsewhere than others, and experts multiply stored weights.
    """
    if spec.is_encoder or options.lora.gpu_bytes:
        return False
    return all(
        layer.experts is None and is_attention(layer.mixer) and layer.mixer.latent is None
        for layer in spec.layers
    )
