"""Captured decode steps: one graph a bucket of rows and a way of sampling.

A step of a few hundred launches costs the host more than it costs the device; as a graph it is one
launch. Buckets are powers of two, captured when first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from zse.backends.cuda.inputs import InputShape
    from zse.device.cuda import DeviceBlock, GraphExec

MAX_BUCKET = 256
ENTRY_ROOM = 16_384
"""Adjusted logits that a captured step has room for."""


def bucket_of(rows: int) -> int:
    """Return the rows of the smallest captured step that holds ``rows`` decode rows."""
    return 1 << (rows - 1).bit_length()


@record
class CapturedStep:
    """A decode step that can be repeated."""

    graph: GraphExec
    inputs: DeviceBlock
    """Where it reads its inputs."""
    shape: InputShape

    def close(self) -> None:
        """Give graph and memory back."""
        self.graph.destroy()
        self.inputs.free()
