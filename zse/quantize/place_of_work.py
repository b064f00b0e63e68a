"""Where a conversion computes: the CPUs, or a GPU that torch sees."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from zse.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = torch.device("cpu")


def choose_device(device: str) -> torch.device:
    """Return the torch device that a user's word means: ``auto`` is a GPU where torch sees one.

    Raises:
        UsageError: It is not a device that can hold a model here.
    """
    accelerator = torch.accelerator.is_available()
    if device == "auto":
        return torch.device("cuda", 0) if accelerator else CPU
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"device {device!r} is not known", hint="cpu, cuda or cuda:N.") from error
    if place.type == "cuda" and accelerator:
        return torch.device("cuda", place.index or 0)
    if place.type != "cpu":
        raise UsageError(
            f"device {device!r} was asked for, but this torch reaches none",
            hint="Use device='cpu', or install a torch built for the GPU.",
        )
    return place


@contextmanager
def made_on(device: torch.device) -> Iterator[None]:
    """Let tensors that are made in a block lie on a device unless they say where."""
    with device:
        yield


@contextmanager
def within_memory_of(device: torch.device) -> Iterator[None]:
    """Name the way out where a GPU has too little memory left.

    Raises:
        DeviceError: It has.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"{device} has too little free memory to convert on it: "
            f"{str(error).partition('. ')[0]}",
            hint="Free it, or convert with --device cpu.",
        ) from error
