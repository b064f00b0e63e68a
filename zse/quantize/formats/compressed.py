"""compressed-tensors: whole numbers, packed or not, FP8, and FP4 in small groups.

``config_groups`` say which numbers modules have; targets may be regular expressions of a stranger.
None is run here: the tensors of a matrix show their bits and groups themselves, and must be those
of one of the groups. What ``ignore`` names has no such tensors. Activations that were to be
quantized too are computed in more bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError, UnsupportedModelError
from zse.quantize.formats.fp4 import FP4Matrix
from zse.quantize.formats.fp8 import DTYPE as FP8_DTYPE
from zse.quantize.formats.fp8 import FP8Matrix, block_of
from zse.quantize.formats.integers import IntegerMatrix, PackedIntegers, PlainIntegers
from zse.quantize.formats.matrix import refuse_unless, whole_number
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.quantize.formats.matrix import Matrix, MatrixForm, Part
    from zse.quantize.safetensors_file import StoredTensor

_FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision",
)  # fmt: skip
_MOST_GROUPS = 1000
_WHOLE_ROW = ("channel", "tensor")


@record
class Numbers:
    """What one of ``config_groups`` says of weights."""

    is_float: bool
    bits: int
    group_size: int | None
    """Inputs that share a scale; None: those of a row, or all."""
    block: tuple[int, int] | None
    """Rows and columns that share a scale."""
    has_one_scale: bool
    """Whether the whole matrix shares a scale."""
    is_symmetric: bool
    """Whether there are no zero points."""


class CompressedTensors:
    """A checkpoint of compressed-tensors.

    Args:
        config: ``quantization_config``.

    Raises:
        UnsupportedModelError: Its numbers are of another kind.
    """

    title = "compressed-tensors"
    ignored: tuple[str, ...] = (
        ".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale",
        ".output_zero_point", ".q_scale", ".k_scale", ".v_scale",
    )  # fmt: skip

    def __init__(self, config: Mapping[str, Any]) -> None:
        refuse_unless(config, "format", *_FORMATS)
        refuse_unless(config, "transform_config", {})
        sparsity = config.get("sparsity_config") or {}
        if not (isinstance(sparsity, dict) and sparsity.get("format", "dense") == "dense"):
            refuse_unless(config, "sparsity_config", {})
        told = _numbers_of(config.get("config_groups"))
        self.nearest = "int8" if any(one.bits == 8 for one in told) else "int4"
        self._forms: dict[tuple[str, str], MatrixForm] = {
            (".weight_packed", "I32"): _Packed(told),
            (".weight_packed", "U8"): _FP4(told),
            (".weight", "I8"): _Integers(told),
            (".weight", FP8_DTYPE): _FP8(told),
        }

    def form_of(self, tensor: StoredTensor) -> MatrixForm | None:
        return self._forms.get((f".{tensor.name.rpartition('.')[2]}", tensor.dtype))


class _Packed:
    required: tuple[str, ...] = ("weight_packed", "weight_scale", "weight_shape")
    optional: tuple[str, ...] = ("weight_zero_point", "weight_g_idx")

    def __init__(self, told: Sequence[Numbers]) -> None:
        self._told = [one for one in told if not one.is_float]

    def matrix(self, parts: Mapping[str, Part]) -> Matrix:
        codes = PackedIntegers(parts, sorted({one.bits for one in self._told}))
        return _fitting(IntegerMatrix(parts, codes), self._told)


class _Integers:
    required: tuple[str, ...] = ("weight", "weight_scale")
    optional: tuple[str, ...] = ("weight_zero_point", "weight_g_idx")

    def __init__(self, told: Sequence[Numbers]) -> None:
        self._told = [one for one in told if not one.is_float]

    def matrix(self, parts: Mapping[str, Part]) -> Matrix:
        codes = PlainIntegers(parts, max((one.bits for one in self._told), default=8))
        return _fitting(IntegerMatrix(parts, codes), self._told)


class _FP8:
    required: tuple[str, ...] = ("weight", "weight_scale")
    optional: tuple[str, ...] = ()

    def __init__(self, told: Sequence[Numbers]) -> None:
        self._told = [one for one in told if one.is_float and one.bits == 8]

    def matrix(self, parts: Mapping[str, Part]) -> Matrix:
        weight, scale = (parts[ending] for ending in self.required)
        found = scale.tensor.shape
        blocks = [one.block for one in self._told if one.block is not None]
        # A scale for each row or for all needs no block; several blocks differ in their shapes.
        fitting = (block for block in blocks if _blocks_in(weight.tensor, block) == found)
        is_whole = any(one.block is None for one in self._told)
        block = next(fitting, None) or (None if is_whole or not blocks else blocks[0])
        if not self._told:
            raise _unlike_all(weight.tensor.name)
        return FP8Matrix(weight, scale, block)


class _FP4:
    required: tuple[str, ...] = ("weight_packed", "weight_scale")
    optional: tuple[str, ...] = ("weight_global_scale",)

    def __init__(self, told: Sequence[Numbers]) -> None:
        self._told = [one for one in told if one.is_float and one.bits == 4]

    def matrix(self, parts: Mapping[str, Part]) -> Matrix:
        matrix = FP4Matrix(parts)
        if matrix.group_size not in {one.group_size for one in self._told}:
            raise _unlike_all(parts["weight_packed"].tensor.name)
        return matrix


def _fitting(matrix: IntegerMatrix, told: Sequence[Numbers]) -> IntegerMatrix:
    """Return a matrix whose bits and groups are those of one of the groups."""
    size = matrix.group_size
    for one in told:
        has_groups = matrix.bits == one.bits and size == (one.group_size or matrix.shape[1])
        has_scales = matrix.has_one_scale == one.has_one_scale or matrix.shape[0] == 1
        if has_groups and has_scales and (one.is_symmetric or matrix.has_zeros):
            return matrix
    raise _unlike_all(matrix.name)


def _unlike_all(name: str) -> CheckpointError:
    return CheckpointError(
        f"bits, groups, scales and zero points of {name} are those of none of the config_groups",
        hint="Check that config.json belongs to this checkpoint.",
    )


def _blocks_in(tensor: StoredTensor, block: tuple[int, int]) -> tuple[int, ...]:
    return tuple(-(-size // high) for size, high in zip(tensor.shape, block, strict=False))


def _numbers_of(groups: object) -> list[Numbers]:
    """Return what ``config_groups`` say of weights."""
    listed = list(groups.values()) if isinstance(groups, dict) else []
    found = [group.get("weights") for group in listed if isinstance(group, dict)]
    weights = [one for one in found if isinstance(one, dict)]
    if not 0 < len(listed) <= _MOST_GROUPS or len(weights) < len(listed):
        raise UnsupportedModelError(
            "quantization_config: config_groups say nothing of weights",
            hint="Convert the checkpoint that was not quantized.",
        )
    for group in listed:
        refuse_unless(group, "format", *_FORMATS)
    return [_numbers(one) for one in weights]


def _numbers(weights: Mapping[str, Any]) -> Numbers:
    needed = {"type": weights.get("type") or "?"}
    refuse_unless(needed, "type", "int", "float")
    is_float = needed["type"] == "float"
    bits = whole_number("num_bits", weights.get("num_bits"), *((4, 8) if is_float else range(2, 9)))
    strategies = ("group", "tensor_group") if is_float and bits == 4 else ("group", *_WHOLE_ROW)
    if is_float and bits == 8:
        strategies = (*strategies, "block")
    told = {"strategy": weights.get("strategy") or "tensor"}
    refuse_unless(told, "strategy", *strategies)
    size, block = None, None
    if "group" in told["strategy"]:
        size = whole_number("group_size", weights.get("group_size"))
        if size < 1:
            size = None if size == -1 else whole_number("group_size", "below 1")
    if told["strategy"] == "block":
        block = block_of(weights.get("block_structure"))
    if is_float and bits == 8 and size is not None:
        block = (1, size)
    return Numbers(
        is_float=is_float,
        bits=bits,
        group_size=size,
        block=block,
        has_one_scale=told["strategy"] == "tensor",
        is_symmetric=weights.get("symmetric") is not False,
    )
