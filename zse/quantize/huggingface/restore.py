"""The tensors of a checkpoint from a file that keeps them otherwise, and the model made of them.

Experts are stacked in a file, rows are reordered, norms are shifted. What a checkpoint calls its
tensors, and where in a model they belong, transformers knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import FormatError
from zse.quantize.pieces import plain_pieces

if TYPE_CHECKING:
    from typing import Any

    import torch

    from zse.format.reader import ZSEReader
    from zse.models.spec import ModelSpec
    from zse.quantize.huggingface.layers import Place


def restored_model(empty: Any, reader: ZSEReader, spec: ModelSpec, place: Place) -> Any:
    """Return a model with the dequantized weights of a file.

    Args:
        empty: The model of the file's config.json, its parameters on the meta device.

    Raises:
        FormatError: The file's tensors and its config.json do not belong together.
    """
    config = empty.config
    model, report = type(empty).from_pretrained(
        None,
        config=config,
        state_dict=checkpoint_tensors(reader, spec, place.dtype),
        dtype=place.dtype,
        output_loading_info=True,
    )
    missing = set(report["missing_keys"]) - set(model.all_tied_weights_keys or ())
    wrong = sorted(missing | set(report["unexpected_keys"]) | set(report["mismatched_keys"]))
    if wrong:
        raise FormatError(f"the file and its config.json disagree about {', '.join(wrong[:3])}")
    model.generation_config = empty.generation_config
    return model.to(place.device)


def checkpoint_tensors(
    reader: ZSEReader, spec: ModelSpec, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the tensors of the checkpoint that a file was made from, dequantized."""
    tensors = {}
    for group in spec.groups():
        for weight in group.weights:
            for piece in plain_pieces(reader, weight):
                tensors[piece.name] = piece.values().to(dtype, copy=True).contiguous()
        reader.release(group.name)
    return tensors
