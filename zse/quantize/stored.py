"""A tensor of a file, or some of its rows: the parts that it is stored as."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.format.as_torch import dequantize, stored_parts
from zse.records import record

if TYPE_CHECKING:
    import torch

    from zse.format.reader import ZSEReader
    from zse.format.spec import TensorEntry


@record
class StoredMatrix:
    """A matrix [N, K], or a vector, as the file has it: rows of a tensor, whose parts are views."""

    entry: TensorEntry
    """Of this matrix: its shape is its own, whatever tensor it was cut from."""
    parts: dict[str, torch.Tensor]
    """By role; the first dimension of each is N."""

    def rows(self, start: int, stop: int) -> StoredMatrix:
        """Return rows ``start`` to ``stop``, sharing memory."""
        return StoredMatrix(
            entry=replace(self.entry, shape=(stop - start, *self.entry.shape[1:])),
            parts={role: part[start:stop] for role, part in self.parts.items()},
        )

    def on(self, device: torch.device) -> StoredMatrix:
        """Return it with its parts on a device."""
        parts = {role: part.to(device) for role, part in self.parts.items()}
        return StoredMatrix(entry=self.entry, parts=parts)

    def values(self) -> torch.Tensor:
        """Return the weights float32 [N, K], where the parts are."""
        return dequantize(self.entry, self.parts)


def stored_matrix(reader: ZSEReader, name: str) -> StoredMatrix:
    """Return a tensor of a file, without a copy."""
    return StoredMatrix(entry=reader.entry(name), parts=stored_parts(reader, name))
