"""NF4 layers as bitsandbytes' Linear4bit: the same codes and maxima, in its order of nibbles."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from zse.errors import UsageError, needing
from zse.format.as_torch import unpack_nibbles
from zse.format.nf4 import NF4_CODES
from zse.format.spec import Scheme
from zse.quantize.huggingface.layers import PlainLayers

if TYPE_CHECKING:
    from zse.format.reader import ZSEReader
    from zse.quantize.huggingface.layers import StoredMatrix


class BitsandbytesLayers:
    """Makes Linear4bit of NF4 matrices and plain layers of the others, such as an INT8 head.

    Args:
        reader: The file; it must hold NF4 layers.

    Raises:
        MissingDependencyError: bitsandbytes is not installed.
        UsageError: The file has no NF4 tensor.
    """

    def __init__(self, reader: ZSEReader, *, device: torch.device, dtype: torch.dtype) -> None:
        schemes = {reader.entry(name).scheme for name in reader.names()}
        if Scheme.NF4 not in schemes:
            raise UsageError(
                f"backend bnb computes on NF4 layers; the file has {', '.join(sorted(schemes))}",
                hint="Convert with --quant nf4, or use backend='zse'.",
            )
        with needing("hf", "backend bnb"):
            self._bnb: Any = importlib.import_module("bitsandbytes")
        self._device = device
        self._dtype = dtype
        self._plain = PlainLayers(device=device, dtype=dtype)

    def make(self, weight: StoredMatrix, bias: torch.Tensor | None) -> torch.nn.Module:
        if weight.entry.scheme is not Scheme.NF4:
            return self._plain.make(weight, bias)
        rows, columns = weight.entry.shape
        layer = self._bnb.nn.Linear4bit(
            columns,
            rows,
            bias=bias is not None,
            compute_dtype=self._dtype,
            quant_type="nf4",
            device="meta",
        )
        state = self._bnb.functional.QuantState(
            absmax=weight.parts["absmax"].reshape(-1).float().to(self._device),
            shape=torch.Size((rows, columns)),
            code=torch.tensor(NF4_CODES, device=self._device),
            blocksize=weight.entry.group_size,
            quant_type="nf4",
            dtype=self._dtype,
        )
        layer.weight = self._bnb.nn.Params4bit(
            to_bitsandbytes(weight.parts["qweight"], weight.entry.group_size).to(self._device),
            requires_grad=False,
            quant_state=state,
            blocksize=weight.entry.group_size,
            compress_statistics=False,
            quant_type="nf4",
            module=layer,
            bnb_quantized=True,
        )
        layer.quant_state = state
        if bias is not None:
            values = bias.to(self._device, self._dtype, copy=True)
            layer.bias = torch.nn.Parameter(values, requires_grad=False)
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
