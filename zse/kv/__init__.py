"""zKV: who owns which KV block, and which prefixes are shared."""

from zse.kv.blocks import BlockAllocator
from zse.kv.cache import BlockTable, KVCache
from zse.kv.prefix import PrefixMatch, RadixTree

__all__ = ["BlockAllocator", "BlockTable", "KVCache", "PrefixMatch", "RadixTree"]
