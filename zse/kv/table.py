"""What a sequence has of the KV cache: its blocks, in token order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.kv.prefix import Namespace
    from zse.kv.windows import WindowTable


@dataclass(kw_only=True)
class BlockTable:
    """The blocks of one sequence, in token order. Only ``KVCache`` changes it."""

    namespace: Namespace = ""
    """Blocks are shared within it only."""
    blocks: list[int] = field(default_factory=list)
    """Block numbers; block i holds tokens [i * block_size, (i + 1) * block_size)."""
    num_cached: int = 0
    """Leading blocks that the prefix tree references too."""
    num_reused_tokens: int = 0
    """Tokens whose KV was there when the table was made."""
    restored_from: int | None = None
    """Checkpoint that its next step starts from; held until then."""
    windows: tuple[WindowTable, ...] = ()
    """Its blocks of layers that see only a window, for each group of them."""
