"""Products of a few tokens on the GPU at hand, as a program: errors and bits of each form.

    python tests/kernels/linear/direct_products.py

Ends with 1 where one is not that of the reference, or where its bits are not those of the kernel
for more tokens. Needs torch with CUDA, and triton.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT, ROOT / "tests" / "support", Path(__file__).parent):
    sys.path.insert(0, str(folder))

from typing import TYPE_CHECKING  # noqa: E402

import torch  # noqa: E402
from jit_launcher import JitLauncher  # noqa: E402
from matrices import make_inputs, make_matrix, relative_error  # noqa: E402

from zse.kernels.linear.direct_forms import DIRECT_FORMATS, DIRECT_ROWS, direct_forms  # noqa: E402
from zse.kernels.linear.launch import linear  # noqa: E402
from zse.kernels.linear.plan import LinearPlan, tile_of  # noqa: E402
from zse.kernels.linear.reference import QUANTIZED_TOLERANCE  # noqa: E402
from zse.kernels.linear.reference import linear as reference  # noqa: E402
from zse.kernels.linear.variants import imma  # noqa: E402

if TYPE_CHECKING:
    from matrices import Inputs, Matrix

    from zse.kernels.variant import Variant

HEIGHT = 1000
"""Rows of the matrix: no multiple of any tile."""
COLUMNS = 11 * 128


def main() -> int:
    launcher = JitLauncher()
    wrong = 0
    for scheme, group in DIRECT_FORMATS:
        matrix = make_matrix(scheme, HEIGHT, COLUMNS, group, device="cuda")
        for variant in (
            form for most in (8, DIRECT_ROWS) for form in direct_forms(scheme, group, most)
        ):
            most = tile_of(variant)[1]
            for rows in (most - 3, most, 2 * most + 1):
                for splits in (1, 3):
                    wrong += not is_right(launcher, matrix, variant, rows, splits)
    print(f"{wrong} wrong")
    return int(wrong > 0)


def is_right(
    launcher: JitLauncher, matrix: Matrix, variant: Variant, rows: int, splits: int
) -> bool:
    """Say what a form makes of random tokens; return whether it is right to the bit."""
    inputs = make_inputs(rows, COLUMNS, quantized=True, device="cuda")
    found = sums_of(launcher, matrix, inputs, variant, rows, splits)
    like = imma(matrix.weight.scheme, matrix.weight.group_size, bn=128, bm=32)
    others = sums_of(launcher, matrix, inputs, like, rows, splits)
    wanted = reference(inputs.exact, matrix.int8_values)
    error = relative_error(found.double().sum(0), wanted)
    same = torch.equal(found, others)
    print(f"{variant.key} {rows} rows, {splits} splits: error {error:.1e}, same bits {same}")
    return error <= QUANTIZED_TOLERANCE and same


def sums_of(
    launcher: JitLauncher, matrix: Matrix, inputs: Inputs, variant: Variant, rows: int, splits: int
) -> torch.Tensor:
    """Return float32 [splits, rows, HEIGHT]."""
    found = torch.full((splits, rows, HEIGHT), float("nan"), device="cuda")
    plan = LinearPlan(variant=variant, splits=splits, rows=rows, columns=HEIGHT)
    linear(launcher, matrix.weight, inputs.activation, found.data_ptr(), plan)
    torch.cuda.synchronize()
    return found


if __name__ == "__main__":
    sys.exit(main())
