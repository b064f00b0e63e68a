"""Programs of one operation for the processor's kernels: products, quantizing, the embedding."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from matrices import Matrix, make_matrix

from zse.kernels.native.codes import Kind, Register, RowSet, Scheme
from zse.kernels.native.library import load
from zse.kernels.native.structs import Matrix as NativeMatrix
from zse.kernels.native.structs import Operation, Quantized, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.kernels.native.library import Pool

ALIGNMENT = 64


@contextmanager
def started_pool(instructions: str, num_threads: int = 1) -> Iterator[Pool]:
    """Give threads that run the library for ``instructions``."""
    pool = load(instructions).start_pool(num_threads)
    try:
        yield pool
    finally:
        pool.close()


def aligned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return zeros whose first byte lies at a multiple of 64."""
    count = torch.Size(shape).numel()
    room = torch.zeros(count * dtype.itemsize + ALIGNMENT, dtype=torch.uint8)
    start = -room.data_ptr() % ALIGNMENT
    return room[start : start + count * dtype.itemsize].view(dtype).view(shape)


@dataclass
class QuantizedRows:
    """Where the kernels put int8 activations, and what they read of them."""

    codes: torch.Tensor
    """int8 [rows, stride]."""
    scales: torch.Tensor
    """float32 [rows, stride / 32]."""
    sums: torch.Tensor
    group: int

    def native(self) -> Quantized:
        return Quantized(
            codes=self.codes.data_ptr(),
            scales=self.scales.data_ptr(),
            sums=self.sums.data_ptr(),
            stride=self.codes.shape[1],
        )

    def values(self, columns: int) -> torch.Tensor:
        """Return float64 [rows, columns]: what the codes stand for."""
        scales = self.scales.double().repeat_interleave(self.group, 1)
        return (self.codes.double() * scales[:, : self.codes.shape[1]])[:, :columns]


def run(pool: Pool, operation: Operation, step: Step) -> None:
    pool.library.run(pool.handle, operation, 1, step)


def quantized_rows(pool: Pool, values: torch.Tensor, group: int) -> QuantizedRows:
    """Return float32 [rows, columns] quantized by the library."""
    rows, columns = values.shape
    stride = -(-columns // 128) * 128
    quantized = QuantizedRows(
        codes=aligned(rows, stride, dtype=torch.int8),
        scales=aligned(rows, stride // 32),
        sums=aligned(rows, stride // 32),
        group=group,
    )
    step = Step(rows=rows, quantized=quantized.native())
    step.registers[Register.RESIDUAL] = values.data_ptr()
    kind, source = Kind.QUANTIZE, Register.RESIDUAL
    run(pool, Operation(kind=kind, input=source, quantizes=group, width=columns), step)
    return quantized


def native_matrix(matrix: Matrix, bias: torch.Tensor | None = None) -> NativeMatrix:
    """Return a matrix as the kernels read it, where its numbers lie."""
    weight = matrix.weight
    return NativeMatrix(
        data=weight.weights,
        scales=weight.scales,
        bias=None if bias is None else bias.data_ptr(),
        rows=weight.rows,
        columns=weight.columns,
        scheme=Scheme[weight.scheme.upper()],
        group=weight.group_size,
    )


@dataclass
class Product:
    """A matrix, activations for it, and how they are multiplied."""

    matrix: Matrix
    values: torch.Tensor
    """float32 [rows, columns]."""
    bias: torch.Tensor | None = None
    quantizes: int = 0
    kind: Kind = Kind.MULTIPLY
    scale: float = 1.0
    of_wanted: bool = False

    def run(self, pool: Pool, output: torch.Tensor, quantized: QuantizedRows | None = None) -> None:
        """Write or add to float32 [rows, N]."""
        rows = len(self.values)
        step = Step(num_wanted=rows) if self.of_wanted else Step(rows=rows, single_rows=rows)
        step.registers[Register.NORMED] = self.values.data_ptr()
        step.registers[Register.LOGITS] = output.data_ptr()
        if quantized is not None:
            step.quantized = quantized.native()
        operation = Operation(
            kind=self.kind,
            input=Register.NORMED,
            output=Register.LOGITS,
            row_set=RowSet.WANTED if self.of_wanted else RowSet.STEP,
            quantizes=self.quantizes,
            scale=self.scale,
        )
        operation.matrix = ctypes.pointer(native_matrix(self.matrix, self.bias))
        run(pool, operation, step)


def make_values(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 131 + columns)
    return torch.randn(rows, columns, generator=generator) + 0.1


def make_native_matrix(scheme: str, rows: int, columns: int, group: int = 0) -> Matrix:
    """Return a random matrix of any scheme, fp32 among them."""
    if scheme != "fp32":
        return make_matrix(scheme, rows, columns, group)
    matrix = make_matrix("fp16", rows, columns)
    wide = matrix.exact.float()
    matrix.kept = (wide,)
    matrix.weight = replace(matrix.weight, scheme="fp32", weights=wide.data_ptr())
    return matrix
