"""A file's tensors as the kernels take them: addresses in its mapping, no copy of any matrix."""

from __future__ import annotations

from array import array
from ctypes import c_float
from math import prod
from typing import TYPE_CHECKING, Protocol

from zse.backends.cpu.memory import address_of
from zse.format.schemes import Scheme, kernel_format
from zse.kernels.native import codes, structs

if TYPE_CHECKING:
    from collections.abc import Collection

    from zse.format.spec import TensorEntry
    from zse.kernels.native.library import Library
    from zse.models.layer_spec import LinearSpec, NormSpec
    from zse.models.weights import WeightSpec

_SCALES = {
    Scheme.INT8: "scale",
    Scheme.INT4: "scale_zero",
    Scheme.INT3: "scale_zero",
    Scheme.INT2: "scale_zero",
    Scheme.NF4: "absmax",
    Scheme.NL4: "signed_scale",
    Scheme.MXFP4: "exponent",
}

_NEAR_BYTES = 1 << 16
"""Tensors that are no further apart lie in one run: nothing but padding is between them."""


class Tensors(Protocol):
    """Where the parts of tensors lie in memory: an open file, or a share of one."""

    def entry(self, name: str) -> TensorEntry:
        """Return a tensor as it lies there."""

    def part(self, name: str, role: str) -> memoryview:
        """Return the bytes of one part of it."""


class Weights:
    """Matrices, norms and vectors of one file; each is made when it is first asked for."""

    def __init__(self, reader: Tensors, library: Library) -> None:
        self._reader = reader
        self._library = library
        self._linears: dict[LinearSpec, structs.Matrix] = {}
        self._norms: dict[NormSpec, structs.Norm] = {}
        self._vectors: dict[str, int] = {}
        self._kept: list[memoryview | array[float]] = []
        """What the addresses point into."""
        self._spans: list[tuple[str, tuple[int, int]]] = []
        """Of each part of a tensor that lies in the file: its name, its first address, its end."""

    def linear(self, spec: LinearSpec) -> structs.Matrix:
        """Return a matrix and its bias."""
        found = self._linears.get(spec)
        if found is None:
            bias = self._optional(spec.bias)
            found = self._linears[spec] = self.matrix(spec.weight, bias=bias)
        return found

    def matrix(self, spec: WeightSpec, *, bias: int | None = None) -> structs.Matrix:
        """Return a matrix where it lies, with the address of what is added to its product."""
        entry = self._reader.entry(spec.name)
        scheme = entry.scheme
        rows, columns = entry.shape
        form, group = kernel_format(scheme, entry.group_size)
        return structs.Matrix(
            data=self._part(spec.name, "data" if scheme.is_plain else "qweight"),
            scales=None if scheme.is_plain else self._part(spec.name, _SCALES[scheme]),
            bias=bias,
            rows=rows,
            columns=columns,
            scheme=codes.Scheme[form.upper()],
            group=group,
        )

    def parts_of(self, spec: WeightSpec) -> tuple[memoryview, ...]:
        """Return the parts of a matrix where they lie: its numbers, then its scales, if any."""
        entry = self._reader.entry(spec.name)
        return tuple(self._reader.part(spec.name, part.role) for part in entry.parts)

    def rows_of(self, spec: WeightSpec, first: int, count: int) -> structs.Matrix:
        """Return some rows of a matrix where they lie."""
        matrix, entry = self.matrix(spec), self._reader.entry(spec.name)
        data, *scales = (part.length_bytes // entry.shape[0] * first for part in entry.parts)
        matrix.data += data
        if scales:
            matrix.scales += scales[0]
        matrix.rows = count
        return matrix

    def norm(self, spec: NormSpec) -> structs.Norm:
        found = self._norms.get(spec)
        if found is None:
            found = self._norms[spec] = structs.Norm(
                weight=self.vector(spec.weight),
                bias=self._optional(spec.bias),
                epsilon=spec.epsilon,
                subtracts_mean=spec.kind == "layer",
            )
        return found

    def vector(self, spec: WeightSpec) -> int:
        """Return the address of a vector's float32 numbers, widened where the file's are not."""
        address = self._vectors.get(spec.name)
        if address is None:
            address = self._vectors[spec.name] = self._widened(spec)
        return address

    def numbers(self, spec: WeightSpec) -> list[float]:
        """Return a vector's numbers."""
        return list((c_float * prod(spec.shape)).from_address(self.vector(spec)))

    def span(self, *, without: Collection[str] = ()) -> tuple[int, int]:
        """Return where the tensors begin in memory that were asked for, and how many bytes on."""
        spans = [span for name, span in self._spans if name not in without]
        first = min(address for address, _ in spans)
        return first, max(end for _, end in spans) - first

    def spans(self, *, without: Collection[str] = ()) -> list[tuple[int, int]]:
        """Return the runs of memory, as ``span`` does, that the tensors asked for lie in."""
        runs: list[tuple[int, int]] = []
        for first, end in sorted(span for name, span in self._spans if name not in without):
            if runs and first - runs[-1][1] < _NEAR_BYTES:
                runs[-1] = (runs[-1][0], max(runs[-1][1], end))
            else:
                runs.append((first, end))
        return [(first, end - first) for first, end in runs]

    def clear(self) -> None:
        """Let go of the mapping; no address may be used afterwards."""
        self._linears.clear()
        self._norms.clear()
        self._vectors.clear()
        self._kept.clear()

    def _optional(self, spec: WeightSpec | None) -> int | None:
        return None if spec is None else self.vector(spec)

    def _widened(self, spec: WeightSpec) -> int:
        scheme, count = self._reader.entry(spec.name).scheme, prod(spec.shape)
        stored = self._part(spec.name, "data")
        if scheme is Scheme.FP32:
            return stored
        wide = array("f", bytes(4 * count))
        self._kept.append(wide)
        address, _ = wide.buffer_info()
        self._library.widen(stored, codes.Scheme[scheme.name], count, address)
        return address

    def _part(self, name: str, role: str) -> int:
        view = self._reader.part(name, role)
        self._kept.append(view)
        address = address_of(view)
        self._spans.append((name, (address, address + len(view))))
        return address
