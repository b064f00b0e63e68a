"""Norms that products begin, beside norms behind their products; also a program.

    python tests/kernels/linear/closed_products.py

tries every form on the GPU at hand. Ends with 1 where one is wrong. Needs torch with CUDA, triton.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT, ROOT / "tests" / "support", Path(__file__).parent):
    sys.path.insert(0, str(folder))

from typing import TYPE_CHECKING, NamedTuple  # noqa: E402

import torch  # noqa: E402
from matrices import make_inputs, make_matrix  # noqa: E402

from zse.kernels.layout import Quantized  # noqa: E402
from zse.kernels.linear.closed import (  # noqa: E402
    Begun,
    multiply_begun,
    multiply_norm,
)
from zse.kernels.linear.closed_forms import CLOSED_ROWS  # noqa: E402
from zse.kernels.linear.launch import linear  # noqa: E402
from zse.kernels.linear.plan import LinearPlan  # noqa: E402
from zse.kernels.linear.variants import decode_forms  # noqa: E402
from zse.kernels.norm.launch import residual_norm  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matrices import Matrix

    from zse.kernels.launcher import Launcher
    from zse.kernels.variant import Variant

EPSILON = 1e-5
CLOSENESS, CODE_CLOSENESS = 1e-5, 1e-2
"""Of the largest sum: the factor of a norm multiplies sums, not scales, so a code that lies between
two may become the other one."""
FORMATS = (("int4", 128), ("int8", 0))


class Codes(NamedTuple):
    """Int8 activations with their scales and sums."""

    codes: torch.Tensor
    scales: torch.Tensor
    sums: torch.Tensor

    @property
    def activation(self) -> Quantized:
        rows, columns = self.codes.shape
        codes, scales, sums = (each.data_ptr() for each in self)
        return Quantized(rows=rows, columns=columns, codes=codes, scales=scales, sums=sums)

    def equal(self, other: Codes) -> bool:
        return all(torch.equal(mine, its) for mine, its in zip(self, other, strict=True))


def no_codes(rows: int, columns: int, device: str) -> Codes:
    groups = torch.full((rows, columns // 128), float("nan"), device=device)
    codes = torch.zeros((rows, columns), dtype=torch.int8, device=device)
    return Codes(codes, groups, groups.clone())


class Products(NamedTuple):
    """One form of products, with what it needs."""

    launcher: Launcher
    form: Variant
    rows: int
    splits: int
    device: str = "cpu"

    def plan(self, matrix: Matrix) -> LinearPlan:
        height = matrix.weight.rows
        return LinearPlan(variant=self.form, splits=self.splits, rows=self.rows, columns=height)

    def room(self, matrix: Matrix) -> torch.Tensor:
        """Return where sums go."""
        shape = (self.splits, self.rows, matrix.weight.rows)
        return torch.full(shape, float("nan"), device=self.device)

    def matrix(self, rows: int, columns: int) -> Matrix:
        scheme = "int8" if "int8" in self.form.key else "int4"
        return make_matrix(scheme, rows, columns, dict(FORMATS)[scheme], device=self.device)

    def sums(self, matrix: Matrix, inputs: Quantized) -> torch.Tensor:
        found = self.room(matrix)
        linear(self.launcher, matrix.weight, inputs, found.data_ptr(), self.plan(matrix))
        return found


def faults(products: Products, hidden: int, width: int) -> list[str]:
    """Compare a norm that is begun, and a product of it, with a norm and its product."""
    launcher, rows, device = products.launcher, products.rows, products.device
    down, up = products.matrix(hidden, width), products.matrix(200, hidden)
    random = make_inputs(rows, width, quantized=True, device=device)
    inputs = random.activation
    assert isinstance(inputs, Quantized)
    seeded = torch.Generator(device).manual_seed(rows * 131 + hidden)
    stream = torch.randn(rows, hidden, generator=seeded, device=device)
    weight = torch.rand(hidden, generator=seeded, device=device) + 0.5
    made, whole = no_codes(rows, hidden, device), no_codes(rows, hidden, device)
    squares = torch.full((rows, hidden // 128), float("nan"), device=device)
    counters = torch.zeros(rows * hidden // 128, dtype=torch.int32, device=device)
    begun = Begun(inputs=made.activation, squares=squares.data_ptr(), epsilon=EPSILON)

    sums, own, room = products.sums(down, inputs), stream.clone(), products.room(down)
    added = linear(launcher, down.weight, inputs, sums.data_ptr(), products.plan(down))
    residual_norm(
        launcher, stream.data_ptr(), rows, hidden, weight.data_ptr(), EPSILON, whole.activation,
        added=added,
    )  # fmt: skip
    multiply_norm(
        launcher, down.weight, inputs, room.data_ptr(), products.plan(down), begun,
        own.data_ptr(), weight.data_ptr(), counters.data_ptr(),
    )  # fmt: skip
    expected, found = products.sums(up, whole.activation), products.room(up)
    multiply_begun(launcher, up.weight, begun, found.data_ptr(), products.plan(up))
    error = float((found - expected).abs().max() / expected.abs().max())
    closeness = CLOSENESS if torch.equal(made.codes, whole.codes) else CODE_CLOSENESS
    checks = {
        "the stream": torch.equal(own, stream),
        "codes": int((made.codes.int() - whole.codes.int()).abs().max()) <= 1,
        f"products of begun norms ({error:.1e})": error <= closeness,
        "counters": not counters.any(),
    }
    return [name for name, is_right in checks.items() if not is_right]


def forms() -> Iterator[Variant]:
    """Yield the forms that have closed twins."""
    for scheme, group in FORMATS:
        for rows in range(1, CLOSED_ROWS + 1):
            yield from decode_forms(scheme, group, rows)


def main() -> int:
    from jit_launcher import JitLauncher

    launcher, wrong = JitLauncher(), 0
    for form in dict.fromkeys(forms()):
        for rows, splits in ((1, 1), (1, 4), (3, 2)):
            products = Products(launcher, form, rows, splits, "cuda")
            found = {fault for _ in range(5) for fault in faults(products, 1024, 2432)}
            wrong += bool(found)
            print(form.key, rows, "rows", splits, "splits:", *(sorted(found) or ["right"]))
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
