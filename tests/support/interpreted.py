"""A launcher that runs kernels in Triton's interpreter, on ordinary memory.

Import it before anything of triton: the interpreter is chosen when a kernel's module is imported.
Addresses are those of CPU tensors: ``launcher.launch(variant, grid, tensor.data_ptr(), 4096)``.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os

os.environ["TRITON_INTERPRET"] = "1"

from typing import TYPE_CHECKING

import torch
from quick_interpreter import quicken
from twins import TWINS

from zse.device.facts_of_gpus import H200
from zse.kernels.variant import TARGET_CONSTANTS, Variant

if TYPE_CHECKING:
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Grid
    from zse.kernels.launcher import Value

quicken()
ELEMENTS = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "i32": torch.int32,
    "i64": torch.int64,
}
TRITON_TWINS = {"attention.context_apart": "zse.kernels.attention.triton.context"}
"""Of kernels in the language below Triton, which has no interpreter: where one of the same name and
operands computes the same."""


class InterpretedLauncher:
    """See ``zse.kernels.launcher.Launcher``. Checks what the compiler would rely on."""

    def __init__(self, device: DeviceFacts = H200) -> None:
        self.device = device
        self.launched: list[str] = []

    def prepare(self, *variants: Variant) -> None:
        pass

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        assert len(arguments) == len(variant.arguments), (variant.key, len(arguments))
        assert all(0 < size < 2**31 for size in grid), (variant.key, grid)
        self.launched.append(variant.key)
        values: dict[str, object] = {}
        for argument, value in zip(variant.arguments, arguments, strict=True):
            if argument.aligned:
                assert value % 16 == 0, f"{variant.key}: {argument.name} = {value}"
            if argument.is_pointer:
                values[argument.name] = tensor_at(int(value), argument.type[1:])
            else:
                assert isinstance(value, float if argument.type == "fp32" else int), argument
                values[argument.name] = value
        if (twin := TWINS.get(variant.kernel.name)) is not None:
            names = [argument.name for argument in variant.arguments]
            types = {argument.name: argument.type for argument in variant.arguments}
            twin(dict(zip(names, arguments, strict=True)), types, grid)
            return
        module = TRITON_TWINS.get(variant.kernel.name, variant.kernel.module)
        function = getattr(importlib.import_module(module), variant.kernel.function)
        constants = dict(variant.constants)
        accepted = inspect.signature(function.fn).parameters
        target = dict(zip(TARGET_CONSTANTS, (False, True), strict=True))
        constants.update((name, value) for name, value in target.items() if name in accepted)
        function[grid](**values, **constants)


def tensor_at(address: int, element: str) -> torch.Tensor:
    """Return a one-element tensor at an address; kernels only take its address."""
    dtype = ELEMENTS[element]
    if address == 0:
        return torch.zeros(1, dtype=dtype)  # a kernel that reads it was told not to
    buffer = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype)
