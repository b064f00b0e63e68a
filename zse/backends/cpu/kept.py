"""What steps leave on a CPU: logits, keys and values, and blocks as others may keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zse.backends.types import logit_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.cpu.cache import KVCache
    from zse.backends.cpu.memory import Pages
    from zse.backends.cpu.states import StatePool
    from zse.backends.kv_images import KVImages
    from zse.backends.types import LogitRows


class Logits(NamedTuple):
    """Rows of logits in memory of their own."""

    pages: Pages
    length_bytes: int
    order: list[int]
    """Their numbers in the order in which the batch asked for them."""

    def rows(self, vocab_size: int) -> LogitRows:
        found = logit_rows(self.pages.view[: self.length_bytes], vocab_size)
        return [found[number] for number in self.order]


class SequenceMemory(NamedTuple):
    """What steps leave for those after them."""

    blocks: KVCache
    states: StatePool


class BlockImages(NamedTuple):
    """Blocks of keys and values as bytes, checked before anything is read or written."""

    blocks: KVCache
    form: KVImages

    def read(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        self.form.check(group, len(blocks), image)
        self.blocks.read_blocks(group, blocks, image)

    def write(self, group: int, blocks: Sequence[int], image: memoryview, first: int) -> None:
        """Write blocks from the image's block ``first`` on."""
        self.form.check(group, len(blocks), image, first)
        own = image[first * self.form.block_bytes[group] :]
        self.blocks.write_blocks(group, blocks, own)
