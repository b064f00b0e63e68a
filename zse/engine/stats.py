"""What an engine has done and holds: a snapshot for metrics."""

from __future__ import annotations

from zse.records import record


@record
class SpeculationCounts:
    """What came of drafts so far."""

    checks: int = 0
    """Runs of drafts that were checked, each of one sequence in one step."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Of these drafts, those that were what the model chose."""


@record
class EngineStats:
    """A snapshot for metrics. Counters only grow."""

    num_running: int = 0
    num_waiting: int = 0
    block_size: int = 0
    """Tokens in a block of the KV cache."""
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    """Blocks that running sequences reference."""
    kv_blocks_cached: int = 0
    """Blocks kept for reuse that nobody references; they count as room."""
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    restored_file_tokens: int = 0
    """Of these, tokens whose KV came with the model's file."""
    restored_store_tokens: int = 0
    """Of these, tokens whose KV was kept from before the start."""
    host_hit_tokens: int = 0
    """Of these, tokens whose KV came back from host memory."""
    host_blocks_total: int = 0
    """Blocks that host memory holds; 0 without any."""
    host_blocks_used: int = 0
    host_blocks_kept: int = 0
    """Blocks that were copied there."""
    preemptions: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of accepted requests."""
    computed_tokens: int = 0
    """Tokens run through the model, recomputation included."""
    generated_tokens: int = 0
    steps: int = 0
    speculation: SpeculationCounts = SpeculationCounts()

    @property
    def kv_usage(self) -> float:
        """Share of the blocks in use, from 0 to 1."""
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0
