"""What KV blocks look like outside of their pool: bytes that only a pool of the same layout takes.

An image of some blocks of one group of layers is theirs alone, in whatever order suits the device;
its length is the number of blocks times ``block_bytes``. Nobody looks inside. A pool whose layout
has the same name takes it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from zse.backends.resident import cached_attentions
from zse.errors import EngineError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.kv_groups import KVGroups
    from zse.models.spec import ModelSpec

_VERSION = 1
"""Of how numbers lie in a block, on any backend."""


@record
class KVImages:
    """How a pool's blocks lie outside of it."""

    layout: str
    """A name that two pools share if and only if they take each other's images."""
    block_bytes: tuple[int, ...]
    """Bytes of a block of each group of layers, those of whole sequences first."""

    def check(self, group: int, num_blocks: int, image: memoryview, first: int = 0) -> None:
        """Refuse an image that holds fewer blocks than are copied.

        Raises:
            EngineError: It does, or no whole number of them.
        """
        size = self.block_bytes[group]
        if len(image) < (first + num_blocks) * size or (size and len(image) % size):
            raise EngineError(
                f"an image of {len(image)} bytes holds no blocks {first} to "
                f"{first + num_blocks - 1} of {size} bytes"
            )


def layout_name(
    device: str, spec: ModelSpec, groups: KVGroups, *, dtype: str, block_size: int
) -> str:
    """Return the name of a layout: of a kind of device, a type of numbers, and a model's shapes."""
    shapes = [
        (index, groups.of_layer[index], one.cached_rows, one.head_dim)
        for index, one in sorted(cached_attentions(spec).items())
    ]
    digest = hashlib.sha256(repr((shapes, groups.windows)).encode()).hexdigest()[:16]
    return f"{device}{_VERSION}-{dtype}-{block_size}-{digest}"


def runs_of_blocks(blocks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return each run of blocks that follow each other: its place, its first block, its length."""
    runs: list[tuple[int, int, int]] = []
    for place, block in enumerate(blocks):
        if runs and block == runs[-1][1] + runs[-1][2]:
            start, first, count = runs[-1]
            runs[-1] = (start, first, count + 1)
        else:
            runs.append((place, block, 1))
    return runs
