"""Which earlier tokens a token sees: the patterns of the literature, as data.

Tokens are taken in blocks of ``block_size``. Each rule holds for single tokens or for whole blocks:
a window and global tokens for tokens, random and strided ones for blocks.
"""

from __future__ import annotations

from typing import Self

from zse.errors import UsageError
from zse.records import record

BLOCK_SIZES = (16, 32, 64, 128)
"""Sides of a block: what a tensor core's product takes."""


@record
class SparsePattern:
    """A pattern; two blocks of tokens see each other or do not, whatever the model is.

    Args:
        name: What it is called.
        block_size: Tokens of a block.
        window_size: Tokens that a token sees up to itself, its own included; to both sides where
            attention is not causal. 0: no window.
        num_global_start: First tokens of the text, which every token sees and which see every one.
        num_random: Tokens that each block of tokens sees besides, in whole blocks drawn at random.
        block_stride: A block sees its own and each block that lies a multiple of so many before it
            (or behind it, where attention is not causal). 0: no such rule.
        seed: Of what is drawn; the same seed draws the same blocks everywhere.
    """

    name: str
    block_size: int = 64
    window_size: int = 0
    num_global_start: int = 0
    num_random: int = 0
    block_stride: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.block_size not in BLOCK_SIZES:
            raise UsageError(
                f"block_size is {self.block_size}", hint=f"Use one of {list(BLOCK_SIZES)}."
            )
        for field in ("window_size", "num_global_start", "num_random", "block_stride"):
            if getattr(self, field) < 0:
                raise UsageError(f"{field} is {getattr(self, field)}", hint="Use 0 or more.")
        if not self.window_size and not self.block_stride:
            raise UsageError(
                f"in pattern {self.name!r} a token does not see itself",
                hint="Give a window_size or a block_stride of 1 or more.",
            )

    @classmethod
    def sliding_window(cls, window_size: int = 512, *, block_size: int = 64) -> Self:
        """Make the pattern of Mistral 7B (arXiv 2310.06825): the last tokens."""
        return cls(name="sliding_window", window_size=window_size, block_size=block_size)

    @classmethod
    def longformer(
        cls, window_size: int = 512, num_global_start: int = 1, *, block_size: int = 64
    ) -> Self:
        """Make that of Longformer (arXiv 2004.05150): a window, and the first tokens for all."""
        return cls(
            name="longformer",
            window_size=window_size,
            num_global_start=num_global_start,
            block_size=block_size,
        )

    @classmethod
    def bigbird(
        cls,
        window_size: int = 256,
        num_random: int = 64,
        *,
        num_global_start: int = 1,
        block_size: int = 64,
        seed: int = 0,
    ) -> Self:
        """Make that of BigBird (arXiv 2007.14062): a window, global tokens, random blocks."""
        return cls(
            name="bigbird",
            window_size=window_size,
            num_random=num_random,
            num_global_start=num_global_start,
            block_size=block_size,
            seed=seed,
        )

    @classmethod
    def block_sparse(cls, block_size: int = 64, block_stride: int = 4) -> Self:
        """Make the strided one of Sparse Transformers (arXiv 1904.10509), in whole blocks."""
        return cls(name="block_sparse", block_size=block_size, block_stride=block_stride)

    @property
    def num_random_blocks(self) -> int:
        """How many blocks are drawn for each block of tokens."""
        return -(-self.num_random // self.block_size)
