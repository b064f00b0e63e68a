"""How rows come to where they are computed, and what is made of them back to the CPU."""

from __future__ import annotations

from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, Protocol

import torch

from zse.quantize.safetensors_file import fresh_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MAX_LOCKED_BYTES = 256 << 20
"""What is read in one piece and is larger is no chunk: locking it takes longer than it saves."""


class Way(Protocol):
    """There and back. What is computed in between stands in ``open``."""

    @contextmanager
    def open(self) -> Iterator[None]: ...

    def memory(self, length_bytes: int) -> torch.Tensor:
        """Return room for rows that are to go there, uint8 [bytes]."""
        ...

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows of the CPU where they are computed."""
        ...

    def back(self, parts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return parts on the CPU, complete."""
        ...


class Plain:
    """Copies as torch makes them: on a GPU each waits for all that anybody has asked of it.

    Args:
        device: Where it is computed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @contextmanager
    def open(self) -> Iterator[None]:
        yield

    def memory(self, length_bytes: int) -> torch.Tensor:
        return fresh_memory(length_bytes)

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(self._device)

    def back(self, parts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {role: part.cpu() for role, part in parts.items()}


class Lanes:
    """A stream of the GPU's for each thread, and copies from and to page-locked memory.

    So one thread's rows come while another's are computed and a third one's parts go. What is
    computed may be nothing that other streams make. torch keeps the page-locked memory for the
    next copy, and with it some hundred MiB for as long as the process lives.

    Args:
        device: A GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = local()

    @contextmanager
    def open(self) -> Iterator[None]:
        before = torch.accelerator.current_stream(self._device)
        torch.accelerator.set_stream(self._stream())
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)

    def memory(self, length_bytes: int) -> torch.Tensor:
        if length_bytes > MAX_LOCKED_BYTES:
            return fresh_memory(length_bytes)
        return torch.empty(length_bytes, dtype=torch.uint8, pin_memory=True)

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        # What was read into this memory and left as it is stays where it is.
        return rows.pin_memory().to(self._device, non_blocking=True)

    def back(self, parts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {
            role: torch.empty(part.shape, dtype=part.dtype, pin_memory=True).copy_(
                part, non_blocking=True
            )
            for role, part in parts.items()
        }
        self._stream().synchronize()
        return found

    def _stream(self) -> torch.Stream:
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.Stream(self._device)
        stream: torch.Stream = self._own.stream
        return stream
