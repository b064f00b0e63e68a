"""What a quantization scheme is: rows of float32 in, the parts of the file out.

Every scheme works on whole rows with exactly rounded element-wise operations, so the bytes do not
depend on how the rows are cut into chunks nor on the number of threads. The price is a few more
passes over memory than fused reductions would take. The inverse is ``as_torch.dequantize``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.format.as_torch import TORCH_DTYPES
from zse.format.schemes import PLAIN, Scheme
from zse.quantize.finite import check_finite
from zse.quantize.int4 import quantize_whole_numbers
from zse.quantize.int8 import quantize_int8
from zse.quantize.mxfp4 import quantize_mxfp4
from zse.quantize.nf4 import quantize_nf4
from zse.quantize.nl4 import quantize_nl4

if TYPE_CHECKING:
    import torch


def quantize_rows(
    scheme: Scheme,
    rows: torch.Tensor,
    group_size: int = 0,
    importance: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Return the parts of some rows by role, as in ``parts_for``.

    Args:
        scheme: How they are stored.
        rows: [num_rows, K] float32; of any shape and type for a plain scheme, which rounds them.
        group_size: Elements along K that share a scale (all but int8; always 32 for mxfp4).
        importance: [K] float32 above 0: what the squared error of an input's weights counts (all
            but int8 and mxfp4).

    Raises:
        ConversionError: A value is infinite, not a number, or out of the scheme's range. (Float16
            ends at 65504: a larger bfloat16 weight is an error and not an infinity in the file.)
    """
    if scheme in (Scheme.INT4, Scheme.INT3, Scheme.INT2):
        parts = quantize_whole_numbers(scheme, rows, group_size, importance)
    elif scheme is Scheme.NF4:
        parts = quantize_nf4(rows, group_size, importance)
    elif scheme is Scheme.NL4:
        parts = quantize_nl4(rows, group_size, importance)
    elif scheme is Scheme.MXFP4:
        parts = quantize_mxfp4(rows)
    elif scheme is Scheme.INT8:
        parts = quantize_int8(rows)
    else:
        parts = {"data": rows.to(TORCH_DTYPES[PLAIN[scheme]]).contiguous()}
    return check_finite(parts, scheme)
