"""What is quantized in the checkpoint already: the same codes and scales, in the file's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.errors import ConversionError
from zse.format.mxfp4 import MAX_EXPONENT, MXFP4_GROUP
from zse.quantize.checkpoint import tensors_of
from zse.quantize.packing import pack_int4
from zse.quantize.source_rows import reordered

if TYPE_CHECKING:
    from zse.models.weights import Source
    from zse.quantize.checkpoint import Checkpoint


def read_packed(
    checkpoint: Checkpoint, source: Source, start: int, stop: int
) -> dict[str, torch.Tensor]:
    """Return the parts of rows ``start`` to ``stop``, as a file has them.

    Both are multiples of ``rows_together``.

    Raises:
        CheckpointError: A file is shorter than its header says.
        ConversionError: An exponent or a scale stands for no number that the scheme can hold.
    """
    assert source.packing is not None
    read = _read_matrix if source.packing.is_matrix else _read_mxfp4
    parts = read(checkpoint, source, start, stop)
    if source.order is None:
        return parts
    return {role: reordered(part, source.order) for role, part in parts.items()}


def _read_matrix(
    checkpoint: Checkpoint, source: Source, start: int, stop: int
) -> dict[str, torch.Tensor]:
    return checkpoint.read_packed(source.name, start, stop)


def _read_mxfp4(
    checkpoint: Checkpoint, source: Source, start: int, stop: int
) -> dict[str, torch.Tensor]:
    blocks, scales = tensors_of(source)
    groups = source.columns // MXFP4_GROUP
    pairs = checkpoint.read_rows(blocks, start * groups, stop * groups)  # [rows * groups, 16]
    exponent = checkpoint.read_rows(scales, start, stop)  # [rows, groups]
    codes = torch.stack((pairs & 15, pairs >> 4), dim=2)
    qweight = pack_int4(codes.view(stop - start, source.columns), MXFP4_GROUP)
    if int(exponent.max()) > MAX_EXPONENT:
        raise ConversionError(
            f"tensor {scales}, rows {start} to {stop}: exponent {int(exponent.max())}; expected at "
            f"most {MAX_EXPONENT}, as larger ones stand for no finite number",
            hint="Download the checkpoint again: it is damaged.",
        )
    return {"qweight": qweight, "exponent": exponent}
