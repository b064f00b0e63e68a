"""Tensors in three tiers: on the device, in the host's memory (pinned), in files that are mapped.

Weights are only read, so a copy on the device is dropped, never written back.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from zse.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Tier: TypeAlias = Literal["cpu", "disk"]


class OffloadManager:
    """Keeps named sets of tensors off the device. Thread-safe.

    Args:
        cpu_bytes: Of the host's memory for copies, at most; what goes beyond lies in files. None:
            all of them.
        folder: Where files are made; a private one, removed in the end, when not given.
        pin: Whether copies in memory are pinned; where there is a GPU when not given.
    """

    def __init__(
        self,
        cpu_bytes: int | None = None,
        *,
        folder: str | Path | None = None,
        pin: bool | None = None,
    ) -> None:
        if cpu_bytes is not None and cpu_bytes < 0:
            raise UsageError(f"{cpu_bytes} bytes of memory were allowed; expected 0 or more")
        self._limit = cpu_bytes
        self._parent = folder
        self._folder: Path | None = None
        self._pin = torch.cuda.is_available() if pin is None else pin
        self._lock = threading.Lock()
        self._held: dict[str, dict[str, torch.Tensor]] = {}
        self._tiers: dict[str, Tier] = {}
        self.cpu_bytes = 0
        """Held in memory now."""
        self.disk_bytes = 0

    def keep(self, name: str, tensors: Mapping[str, torch.Tensor]) -> Tier:
        """Take a set of tensors over, in memory while it fits, else in a file.

        Raises:
            UsageError: There is one of this name.
            StoreError: The file cannot be written.
        """
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        with self._lock:
            if name in self._held:
                raise UsageError(f"{name} is kept already")
            fits = self._limit is None or self.cpu_bytes + size <= self._limit
            tier: Tier = "cpu" if fits else "disk"
            self._held[name] = self._to_memory(tensors) if fits else self._to_file(name, tensors)
            self._tiers[name] = tier
            if fits:
                self.cpu_bytes += size
            else:
                self.disk_bytes += size
        return tier

    def tier(self, name: str) -> Tier:
        """Return where a set lies."""
        return self._tiers[name]

    def host(self, name: str) -> dict[str, torch.Tensor]:
        """Return a set's tensors where they lie; those of a file are read when they are used."""
        return dict(self._held[name])

    def fetch(
        self, name: str, device: torch.device, *, waits: bool = True
    ) -> dict[str, torch.Tensor]:
        """Return copies of a set on a device; unless it ``waits``, they come in stream order."""
        return {
            key: tensor.to(device, non_blocking=not waits, copy=True)
            for key, tensor in self._held[name].items()
        }

    def size_bytes(self, name: str) -> int:
        held = self._held[name].values()
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def close(self) -> None:
        """Let everything go, and remove what was written; twice does nothing."""
        with self._lock:
            self._held.clear()
            folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _to_memory(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {}
        for key, tensor in tensors.items():
            host = tensor.detach().to("cpu")
            found[key] = host.pin_memory() if self._pin else host
        return found

    def _to_file(self, name: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self._folder is None:  # with access for its owner alone
            self._folder = Path(tempfile.mkdtemp(prefix="zse-offload-", dir=self._parent))
        found = {}
        for number, (key, tensor) in enumerate(tensors.items()):
            flat = tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8)
            if not flat.numel():
                found[key] = tensor.detach().to("cpu")
                continue
            path = self._folder / f"{len(self._held)}-{number}.bin"
            try:
                with path.open("xb") as file:
                    flat.numpy().tofile(file)
            except OSError as error:
                raise StoreError(
                    f"{name} cannot be written to {path}: {error.strerror}",
                    hint="Give it a folder with more room (folder=), or more memory (cpu_bytes=).",
                ) from error
            mapped = torch.from_file(str(path), shared=True, size=flat.numel(), dtype=torch.uint8)
            found[key] = mapped.view(tensor.dtype).view(tensor.shape)
        return found
