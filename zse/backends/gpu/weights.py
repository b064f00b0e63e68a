"""Weights in device memory: one block that a placement filled, and addresses in it.

Nothing is converted: the kernels read the file's own layout. The one exception are norm weights
and biases that a file stores in 16 bits, which kernels want in float32; they are a few kilobytes.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from zse.errors import UnsupportedModelError
from zse.format.schemes import Scheme, kernel_format
from zse.kernels.embed.launch import EmbedTable, Placing
from zse.kernels.linear.weight import LinearWeight

if TYPE_CHECKING:
    from zse.device.gpu import Block, Gpu, Stream
    from zse.format.spec import TensorEntry
    from zse.models.layer_spec import LinearSpec, NormSpec
    from zse.models.spec import EmbeddingSpec, ModelSpec
    from zse.models.weights import WeightSpec
    from zse.stream.placement import Placement


class BoundLinear(NamedTuple):
    """A matrix and what is added to its product."""

    weight: LinearWeight
    bias: int
    """Address of float32 [rows of weight], or 0."""
    name: str
    """What adapters call the matrix."""


class BoundNorm(NamedTuple):
    """RMSNorm, or LayerNorm."""

    weight: int
    """Address of float32 [columns]."""
    bias: int
    """The same, or 0."""
    epsilon: float
    is_layer_norm: bool


class BoundEmbedding(NamedTuple):
    """A table, and what is added to its rows; see ``zse.models.spec.EmbeddingSpec``."""

    table: EmbedTable
    placing: Placing | None
    """Without the addresses of a step; None where nothing is added."""
    norm: BoundNorm | None


class DeviceWeights:
    """Where every tensor lies on the device: ``block`` holds what ``placement`` says."""

    def __init__(self, gpu: Gpu, placement: Placement, block: Block) -> None:
        self._gpu = gpu
        self._block = block
        self.header = placement.header
        self._shift = block.address - placement.origin_bytes
        tensors = [placement.held(entry) for entry in placement.header.tensors]
        self._entries = {entry.name: entry for entry in tensors}
        vectors = [entry for entry in tensors if len(entry.shape) == 1]
        self._narrow = [entry for entry in vectors if entry.scheme is not Scheme.FP32]
        self.vectors = {
            entry.name: self._addresses(entry)[0]
            for entry in tensors
            if entry.scheme is Scheme.FP32
        }
        self._widened = self._place_widened() if self._narrow else None
        self.linears = {
            entry.name: self._linear_of(entry)
            for entry in tensors
            if len(entry.shape) == 2 and entry.scheme is not Scheme.FP32
        }

    def move(self, placement: Placement, block: Block) -> None:
        """Take matrices from where another placement has them; vectors stay where they were."""
        self._block = block
        self._shift = block.address - placement.origin_bytes
        tensors = [placement.held(entry) for entry in placement.header.tensors]
        self._entries = {entry.name: entry for entry in tensors}
        self.vectors |= {
            entry.name: self._addresses(entry)[0]
            for entry in tensors
            if entry.scheme is Scheme.FP32
        }
        for entry in tensors:
            if entry.name in self.linears:
                self.linears[entry.name] = self._linear_of(entry)

    def matrix(self, spec: WeightSpec) -> LinearWeight:
        """Return where a matrix is.

        Raises:
            UnsupportedModelError: It is stored in a way that no kernel multiplies.
        """
        try:
            return self.linears[spec.name]
        except KeyError:
            raise UnsupportedModelError(
                f"tensor {spec.name} is stored as {self._entries[spec.name].scheme}, which the GPU "
                "kernels do not multiply",
                hint="Convert the model to int4, int3, int2, nf4, nl4, int8, fp16 or bf16.",
            ) from None

    def rows_of(self, spec: WeightSpec, first: int, count: int) -> LinearWeight:
        """Return some rows of a matrix where they lie."""
        matrix, entry = self.matrix(spec), self._entries[spec.name]
        data, *scales = (part.length_bytes // entry.shape[0] * first for part in entry.parts)
        return replace(
            matrix,
            rows=count,
            weights=matrix.weights + data,
            scales=matrix.scales + scales[0] if scales else 0,
        )

    def head(self, spec: ModelSpec) -> LinearWeight | None:
        """Return the matrix of the head, or a rank's rows of it."""
        head = spec.head
        if head.weight is None:
            return None
        if head.rows is None or not spec.is_tied:
            return self.matrix(head.weight)
        return self.rows_of(head.weight, head.rows.first, head.rows.count)

    def linear(self, spec: LinearSpec) -> BoundLinear:
        weight = spec.weight
        return BoundLinear(self.matrix(weight), self._vector(spec.bias), weight.name)

    def norm(self, spec: NormSpec) -> BoundNorm:
        weight, bias = self.vectors[spec.weight.name], self._vector(spec.bias)
        return BoundNorm(weight, bias, spec.epsilon, spec.kind == "layer")

    def vector(self, spec: WeightSpec) -> int:
        """Return the address of float32 numbers."""
        return self.vectors[spec.name]

    def table(self, spec: WeightSpec) -> EmbedTable:
        """Return where a table is whose rows tokens name."""
        entry = self._entries[spec.name]
        weights, scales = self._addresses(entry)
        return EmbedTable(
            scheme=str(entry.scheme), group_size=entry.group_size, weights=weights, scales=scales
        )

    def embedding(self, spec: EmbeddingSpec) -> BoundEmbedding:
        placing = None
        if spec.positions is not None or spec.token_types is not None:
            placing = Placing(
                position_rows=self._vector(spec.positions),
                first_position=spec.first_position,
                type_rows=self._vector(spec.token_types),
            )
        table, norm = self.table(spec.weight), spec.norm
        return BoundEmbedding(table, placing, None if norm is None else self.norm(norm))

    @property
    def has_narrow_vectors(self) -> bool:
        """Whether ``widen_vectors`` has anything to do."""
        return bool(self._narrow)

    def widen_vectors(self, stream: Stream) -> None:
        """Fill the float32 copies of 16-bit vectors, once the block is filled."""
        if self._widened is not None:
            self._widen(self._widened, stream)

    @property
    def block(self) -> Block:
        """What holds them."""
        return self._block

    def memory_bytes(self) -> int:
        return self._block.length_bytes + (self._widened.length_bytes if self._widened else 0)

    def _vector(self, spec: WeightSpec | None) -> int:
        return 0 if spec is None else self.vectors[spec.name]

    def _addresses(self, entry: TensorEntry) -> tuple[int, int]:
        """Return where a tensor's numbers or codes are, and its scales, 0 where there are none."""
        first, *scales = (self._shift + part.offset_bytes for part in entry.parts)
        return first, scales[0] if scales else 0

    def _linear_of(self, entry: TensorEntry) -> LinearWeight:
        weights, scales = self._addresses(entry)
        scheme, group_size = kernel_format(entry.scheme, entry.group_size)
        return LinearWeight(
            scheme=scheme,
            rows=entry.shape[0],
            columns=entry.shape[1],
            group_size=group_size,
            weights=weights,
            scales=scales,
        )

    def _place_widened(self) -> Block:
        """Take a block for float32 copies of the narrow vectors, each 256-byte aligned."""
        offsets, total = [], 0
        for entry in self._narrow:
            offsets.append(total)
            total += -(-entry.shape[0] * 4 // 256) * 256
        block = self._gpu.allocate(total)
        for entry, offset in zip(self._narrow, offsets, strict=True):
            self.vectors[entry.name] = block.address + offset
        return block

    def _widen(self, block: Block, stream: Stream) -> None:
        host = self._gpu.allocate_host(block.length_bytes)
        offsets = {entry.name: self.vectors[entry.name] - block.address for entry in self._narrow}
        try:
            for entry in self._narrow:
                part, target = entry.part("data"), host.address + offsets[entry.name]
                source = self._shift + part.offset_bytes
                self._gpu.copy_to_host(target, source, part.length_bytes, stream)
            stream.synchronize()
            for entry in self._narrow:
                offset, count = offsets[entry.name], entry.shape[0]
                raw = bytes(host.view[offset : offset + 2 * count])
                host.view[offset : offset + 4 * count] = widened(raw, entry.scheme)
            self._gpu.copy_to_device(block.address, host.address, block.length_bytes, stream)
            stream.synchronize()
        finally:
            host.free()


def widened(raw: bytes, scheme: Scheme) -> bytes:
    """Return 16-bit numbers as little-endian float32."""
    if scheme is Scheme.FP16:
        count = len(raw) // 2
        return struct.pack(f"<{count}f", *struct.unpack(f"<{count}e", raw))
    wide = bytearray(2 * len(raw))  # a bfloat16 is the upper half of a float32
    wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
    return bytes(wide)
