"""A launcher over Triton's own compiler, for a machine with a GPU, triton and torch.

Addresses are those of tensors on the GPU. Launches go to torch's current stream, so they can be
captured. Numbers stay run-time arguments, as in a kernel pack; the code is that of the Triton at
hand: not bit for bit what a pack holds.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
from triton.experimental import gluon

from zse.device.cuda.info import read_info
from zse.device.cuda.library import Driver

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

    from zse.device.gpu import Grid
    from zse.kernels.launcher import Value
    from zse.kernels.variant import Variant

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


@dataclass(frozen=True)
class Address:
    """What Triton wants of a tensor."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


class JitLauncher:
    """See ``zse.kernels.launcher.Launcher``."""

    def __init__(self) -> None:
        self.device = read_info(Driver(), 0)
        self._programmatic = int(self.device.target.removeprefix("sm_")) >= 90
        self.launched: list[str] = []
        self._functions: dict[str, JITFunction] = {}

    def prepare(self, *variants: Variant) -> None:
        pass

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        assert len(arguments) == len(variant.arguments), (variant.key, len(arguments))
        self.launched.append(variant.key)
        values: dict[str, object] = {}
        for argument, value in zip(variant.arguments, arguments, strict=True):
            if argument.aligned:
                assert value % 16 == 0, f"{variant.key}: {argument.name} = {value}"
            if argument.is_pointer:
                values[argument.name] = Address(int(value), ELEMENTS[argument.type[1:]])
            else:
                values[argument.name] = value
        function = self._function(variant)
        constants: dict[str, object] = dict(variant.constants)
        target = {"PDL": self._programmatic, "PLAIN": False}
        accepted = inspect.signature(function.fn).parameters
        constants.update((name, value) for name, value in target.items() if name in accepted)
        function[grid](
            **values,
            **constants,
            num_warps=variant.num_warps,
            num_stages=variant.num_stages,
            launch_pdl=self._programmatic,
        )

    def _function(self, variant: Variant) -> JITFunction:
        """Return the kernel, without Triton's habit of making constants of ones."""
        if variant.key not in self._functions:
            module = importlib.import_module(variant.kernel.module)
            numbers = [a.name for a in variant.arguments if not (a.is_pointer or a.aligned)]
            found = getattr(module, variant.kernel.function)
            make = gluon.jit if found.is_gluon() else triton.jit
            self._functions[variant.key] = make(found.fn, do_not_specialize=numbers)
        return self._functions[variant.key]
