"""Our matrix kernels on torch's GPU tensors: same context, same stream, addresses passed along."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from zse.backends.gpu.launcher import PackLauncher
from zse.device.open import open_gpu
from zse.errors import DeviceError, UnsupportedModelError
from zse.format.schemes import kernel_format
from zse.kernels.errors import KernelPackNotFound
from zse.kernels.find import find_pack
from zse.kernels.layout import Plain
from zse.kernels.linear.launch import linear, linear_prefill
from zse.kernels.linear.plan import MAX_ROWS, form_of, plan_linear
from zse.kernels.linear.weight import LinearWeight

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from zse.device.gpu import Stream
    from zse.format.reader import ZSEReader
    from zse.kernels.launcher import Launcher
    from zse.quantize.stored import StoredMatrix
    from zse.settings import Settings

SCRATCH_BYTES = 32 << 20
"""Where rows of a matrix are 16-bit for a moment; stays in the second-level cache."""
_LOG = logging.getLogger("zse.huggingface")


class TorchLinearKernels:
    """Multiplies packed matrices with a launcher whose stream is torch's."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def supports(self, weight: StoredMatrix) -> bool:
        try:
            form_of(_described(weight))
        except UnsupportedModelError:
            return False
        return True

    def multiply(self, weight: StoredMatrix, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs [M, K] @ weight^T as float32 [M, N]; inputs are rounded to bfloat16."""
        with current(inputs.device):
            return self._multiply(weight, inputs)

    def _multiply(self, weight: StoredMatrix, inputs: torch.Tensor) -> torch.Tensor:
        matrix = _described(weight)
        values = inputs.to(torch.bfloat16).contiguous()
        count, device = values.shape[0], values.device
        activations = Plain(rows=count, columns=matrix.columns, values=values.data_ptr())
        if count > MAX_ROWS:
            outputs = torch.empty(count, matrix.rows, dtype=torch.float32, device=device)
            scratch = torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=device)
            linear_prefill(
                self._launcher,
                matrix,
                activations,
                outputs.data_ptr(),
                "fp32",
                scratch.data_ptr(),
                SCRATCH_BYTES,
            )
            return outputs
        plan = plan_linear(matrix, count, quantized=False, device=self._launcher.device)
        shape = (plan.splits, count, matrix.rows)
        sums = torch.empty(shape, dtype=torch.float32, device=device)
        linear(self._launcher, matrix, activations, sums.data_ptr(), plan)
        return sums.sum(0)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Have a GPU be the current one, until what uses it is done: drivers leave theirs current."""
    return torch.cuda.device(device if device.type == "cuda" else -1)  # noqa: TID251 - torch's


class TorchStream:
    """Torch's current stream of a device, as a launcher wants it: a handle, asked each time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def handle(self) -> int:
        stream = torch.cuda.current_stream(self._device)  # noqa: TID251 - torch's, not the hardware
        return int(stream.cuda_stream)


class CopiedSections:
    """The sections of a file as copies, which outlive it."""

    def __init__(self, reader: ZSEReader) -> None:
        self._reader = reader

    def has_section(self, name: str) -> bool:
        return self._reader.has_section(name)

    def section(self, name: str) -> memoryview:
        return memoryview(bytes(self._reader.section(name)))


def open_kernels(
    device: torch.device, reader: ZSEReader, settings: Settings
) -> TorchLinearKernels | None:
    """Return kernels for a device; None on a CPU, and where there are none for the GPU.

    Raises:
        KernelPackError: A pack is damaged, or building one failed.
    """
    if device.type != "cuda":
        return None
    kernels = settings.serve.load.device.kernels
    try:
        with current(device):
            gpu = open_gpu(f"cuda:{device.index or 0}")
        pack = find_pack(
            gpu.info,
            explicit=Path(kernels) if kernels else None,
            sections=CopiedSections(reader),
            cache_dir=settings.cache_dir,
        )
    except (DeviceError, KernelPackNotFound) as error:
        _LOG.warning("layers compute with torch, slowly: %s (%s)", error.message, error.hint)
        return None
    stream = cast("Stream", TorchStream(device))
    return TorchLinearKernels(PackLauncher(gpu, pack, stream))


def _described(weight: StoredMatrix) -> LinearWeight:
    rows, columns = weight.entry.shape
    first, *scales = (weight.parts[part.role].data_ptr() for part in weight.entry.parts)
    scheme, group_size = kernel_format(weight.entry.scheme, weight.entry.group_size)
    return LinearWeight(
        scheme=scheme,
        rows=rows,
        columns=columns,
        group_size=group_size,
        weights=first,
        scales=scales[0] if scales else 0,
    )
