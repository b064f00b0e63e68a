"""NF4 layers as bitsandbytes' Linear4bit: the same codes and maxima, in its order of nibbles."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from zse.errors import UsageError, needing
from zse.format.as_torch import unpack_nibbles
from zse.format.nf4 import NF4_CODES
from zse.format.schemes import Scheme

if TYPE_CHECKING:
    from zse.format.reader import ZSEReader
    from zse.quantize.huggingface.layers import LayerMaker, Place
    from zse.quantize.stored import StoredMatrix


def bitsandbytes(purpose: str) -> Any:
    """Return the library.

    Raises:
        MissingDependencyError: It is not installed; ``purpose`` needs it.
    """
    with needing("hf", purpose):
        return importlib.import_module("bitsandbytes")


def bitsandbytes_layers(reader: ZSEReader, place: Place) -> LayerMaker:
    """Return what makes Linear4bit of NF4 matrices and plain layers of others, as an INT8 head.

    Args:
        reader: The file; it must hold NF4 layers.

    Raises:
        MissingDependencyError: bitsandbytes is not installed.
        UsageError: The file has no NF4 tensor.
    """
    schemes = {reader.entry(name).scheme for name in reader.names()}
    if Scheme.NF4 not in schemes:
        raise UsageError(
            f"backend bnb computes on NF4 layers; the file has {', '.join(sorted(schemes))}",
            hint="Convert with --quant nf4, use backend='zse', or round its layers anew with "
            "convert_model_to_bnb(model).",
        )
    library = bitsandbytes("backend bnb")

    def make(weight: StoredMatrix, bias: torch.Tensor | None) -> torch.nn.Module:
        is_nf4 = weight.entry.scheme is Scheme.NF4
        return (
            linear4bit(library, place, weight, bias) if is_nf4 else place.plain_layer(weight, bias)
        )

    return make


def linear4bit(
    library: Any, place: Place, weight: StoredMatrix, bias: torch.Tensor | None
) -> torch.nn.Module:
    """Return a Linear4bit of ``library``, bitsandbytes, with the codes of an NF4 matrix."""
    (rows, columns), group_size = weight.entry.shape, weight.entry.group_size
    layer: torch.nn.Module = library.nn.Linear4bit(
        columns,
        rows,
        bias=bias is not None,
        compute_dtype=place.dtype,
        quant_type="nf4",
        device="meta",
    )
    state = library.functional.QuantState(
        absmax=weight.parts["absmax"].reshape(-1).float().to(place.device),
        shape=torch.Size((rows, columns)),
        code=torch.tensor(NF4_CODES, device=place.device),
        blocksize=group_size,
        quant_type="nf4",
        dtype=place.dtype,
    )
    layer.weight = library.nn.Params4bit(
        to_bitsandbytes(weight.parts["qweight"], group_size).to(place.device),
        requires_grad=False,
        quant_state=state,
        blocksize=group_size,
        compress_statistics=False,
        quant_type="nf4",
        module=layer,
        bnb_quantized=True,
    )
    layer.quant_state = state
    if bias is not None:
        layer.bias = place.frozen(bias)
    return layer


def to_bitsandbytes(qweight: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return packed codes in bitsandbytes' order: neighbours in a byte, the first one high.

    Args:
        qweight: uint8 [N, K/2] in the order of the file.

    Returns:
        uint8 [N * K / 2, 1].
    """
    codes = unpack_nibbles(qweight, group_size).reshape(-1, 2)
    return (codes[:, :1] << 4) | codes[:, 1:]
