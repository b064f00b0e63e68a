"""Little checkpoints that the library of compressed-tensors has packed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from quantized_folders import rewritten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PACKED, BYTES = "pack-quantized", "int-quantized"


def told(bits: int, group_size: int | None = None, **more: Any) -> dict[str, Any]:
    """Return what a checkpoint says of weights."""
    strategy = "channel" if group_size is None else "group"
    weights = {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": True}
    return weights | ({} if group_size is None else {"group_size": group_size}) | more


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "int4 group": (PACKED, told(4, 32)),
    "int4 asymmetric": (PACKED, told(4, 32, symmetric=False)),
    "int4 channel": (PACKED, told(4)),
    "int4 channel asymmetric": (PACKED, told(4, symmetric=False)),
    "int8 packed": (PACKED, told(8)),
    "int8": (BYTES, told(8)),
    "int8 tensor": (BYTES, told(8, strategy="tensor")),
    "int8 group": (PACKED, told(8, 64)),
    "int8 asymmetric": (BYTES, told(8, symmetric=False)),
    "int3": (PACKED, told(3, 64, symmetric=False)),
    "nvfp4": ("nvfp4-pack-quantized", told(4, 16, type="float", strategy="tensor_group")),
    "mxfp4": ("mxfp4-pack-quantized", told(4, 32, type="float")),
}


def config_of(*groups: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a ``quantization_config``; with one group its format is that of all."""
    named = {
        f"group_{index}": {"targets": ["Linear"], "weights": weights, "format": name}
        for index, (name, weights) in enumerate(groups)
    }
    whole = groups[0][0] if len({name for name, _ in groups}) == 1 else "mixed-precision"
    return {
        "quant_method": "compressed-tensors",
        "format": whole,
        "config_groups": named,
        "ignore": ["lm_head"],
        **more,
    }


def pack(
    name: str, weights: Mapping[str, Any], seed: int = 0, shape: tuple[int, int] = (64, 128)
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the tensors of a random matrix, and the numbers that the library reads from them."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = shape
    matrix = torch.randn(shape, generator=generator) * 0.05
    groups = columns // (weights.get("group_size") or columns)
    state = {"weight": matrix, "weight_scale": _scales(weights, rows, groups, generator)}
    if weights["strategy"] == "tensor":
        state["weight_scale"] = torch.tensor([0.002], dtype=torch.bfloat16)
    if not weights["symmetric"]:
        half = 1 << (weights["num_bits"] - 1)
        zeros = torch.randint(-half // 2, half // 2, (rows, groups), generator=generator)
        state["weight_zero_point"] = zeros.to(torch.int8)
    if weights["strategy"] == "tensor_group":
        state["weight_global_scale"] = torch.tensor([4.0])
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    compressor = BaseCompressor.get_value_from_registry(name)
    packed = compressor.compress(state, scheme)
    # In float32, so that the library does not round what it multiplies.
    wide = {
        key: part.float() if key == "weight_scale" and part.dtype is torch.bfloat16 else part
        for key, part in packed.items()
    }
    values = compressor.decompress(wide, scheme)["weight"].float()
    return {key: part.contiguous() for key, part in packed.items()}, values


def _scales(
    weights: Mapping[str, Any], rows: int, groups: int, generator: torch.Generator
) -> torch.Tensor:
    if weights["type"] == "int":
        scale = torch.rand(rows, groups, generator=generator) * 0.1 / (1 << weights["num_bits"])
        return (scale + 1e-4).bfloat16()
    if weights["strategy"] == "tensor_group":
        scale = torch.rand(rows, groups, generator=generator) * 0.2 + 0.01
        return scale.to(torch.float8_e4m3fn).float()
    return 2.0 ** torch.randint(-9, -3, (rows, groups), generator=generator)


def write(
    folder: Path,
    kind_of: Callable[[str], tuple[str, dict[str, Any]] | None],
    config: Mapping[str, Any],
) -> dict[str, torch.Tensor]:
    """Pack the matrices of a checkpoint; return the numbers that each stands for, by its name."""
    values: dict[str, torch.Tensor] = {}

    def quantized(base: str, weight: torch.Tensor) -> dict[str, torch.Tensor] | None:
        if (kind := kind_of(base[:-1])) is None:
            return None
        rows, columns = weight.shape
        tensors, values[base[:-1]] = pack(*kind, len(values), (rows, columns))
        return tensors

    rewritten(folder, config, quantized)
    return values
