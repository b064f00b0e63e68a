"""What is counted, as tables: names, helps, labels, bounds.

Names follow vLLM's under our own prefix, so that existing dashboards need one substitution;
``VLLM_NAMES`` says which of them can also be told under vLLM's.
"""

from __future__ import annotations

from zse.records import record

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.5)
_TOKENS = tuple(float(1 << power) for power in range(18))
COLD_START_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 120.0)


@record
class Family:
    """A metric that is written as things happen: a counter; a histogram where it has bounds."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    """Besides those of requests."""
    is_of_request: bool = True
    """Whether it is told by model, and by key where that is asked for."""
    bounds: tuple[float, ...] = ()
    is_tallied: bool = False
    """Noted with every token, so that it is kept as a ``Tally``."""


def _timed(
    name: str, text: str, bounds: tuple[float, ...] = _SECONDS, *, is_tallied: bool = False
) -> Family:
    return Family(name=f"zse_{name}_seconds", help=text, bounds=bounds, is_tallied=is_tallied)


FAMILIES: dict[str, Family] = {
    "responses": Family(
        name="zse_requests",
        help="HTTP responses.",
        labels=("route", "status"),
        is_of_request=False,
    ),
    "rejections": Family(
        name="zse_admission_rejections",
        help="Requests that met a full queue.",
        is_of_request=False,
    ),
    "model_swaps": Family(
        name="zse_model_swaps",
        help="Models that requests had brought, or that failed to come.",
        labels=("model", "outcome"),
        is_of_request=False,
    ),
    "model_swap": Family(
        name="zse_model_swap_seconds",
        help="From a model's turn until it was there: others left, it was loaded.",
        labels=("model",),
        is_of_request=False,
        bounds=_SECONDS,
    ),
    "model_wait": Family(
        name="zse_model_wait_seconds",
        help="Time that a request waited for its model, where it was not there.",
        labels=("model",),
        is_of_request=False,
        bounds=_SECONDS,
    ),
    "sleeps": Family(
        name="zse_sleeps",
        help="Times that all models gave their memory back.",
        labels=("level",),
        is_of_request=False,
    ),
    "finished": Family(
        name="zse_request_success", help="Choices that ended.", labels=("finished_reason",)
    ),
    "cancelled": Family(
        name="zse_requests_cancelled", help="Requests that ended before they were complete."
    ),
    "prompt_tokens": Family(name="zse_prompt_tokens", help="Prompt tokens."),
    "generated_tokens": Family(name="zse_generation_tokens", help="Generated tokens."),
    "cached_tokens": Family(
        name="zse_cached_prompt_tokens", help="Prompt tokens served from the cache."
    ),
    "first_token": _timed("time_to_first_token", "Admission to first token."),
    "token_gap": _timed(
        "inter_token_latency", "Time between pieces of an answer.", _SHORT_SECONDS, is_tallied=True
    ),
    "per_token": _timed(
        "request_time_per_output_token",
        "Time after the first token, divided by the tokens that followed it.",
        _SHORT_SECONDS,
    ),
    "request": _timed("e2e_request_latency", "Admission to end."),
    "queue": _timed("request_queue_time", "Admission to the first step that computes it."),
    "prefill": _timed("request_prefill_time", "First step to first token."),
    "decode": _timed("request_decode_time", "First token to last."),
    "prompt_length": Family(
        name="zse_request_prompt_tokens", help="Prompt tokens of a request.", bounds=_TOKENS
    ),
    "answer_length": Family(
        name="zse_request_generation_tokens", help="Tokens made for a request.", bounds=_TOKENS
    ),
}

GAUGES = {
    "zse_num_requests_running": ("Choices that the engine is running.", "num_running"),
    "zse_num_requests_waiting": ("Choices that wait for the engine.", "num_waiting"),
    "zse_kv_cache_usage_perc": ("Share of KV blocks in use, 0 to 1.", "kv_usage"),
    "zse_kv_blocks_total": ("KV blocks in the pool.", "kv_blocks_total"),
    "zse_prefix_host_blocks_total": (
        "KV blocks that host memory holds for prefixes.",
        "host_blocks_total",
    ),
    "zse_prefix_host_blocks_used": (
        "KV blocks of prefixes that are in host memory.",
        "host_blocks_used",
    ),
}
"""Read when somebody scrapes: name -> (help, attribute of EngineStats)."""
COUNTERS = {
    "zse_prefix_cache_queries": ("Prompt tokens looked up for reuse.", "prefix_query_tokens"),
    "zse_prefix_cache_hits": ("Prompt tokens whose KV was reused.", "prefix_hit_tokens"),
    "zse_prefix_file_hits": (
        "Prompt tokens whose KV came with the model's file.",
        "restored_file_tokens",
    ),
    "zse_prefix_store_hits": (
        "Prompt tokens whose KV was kept from before the start.",
        "restored_store_tokens",
    ),
    "zse_prefix_host_hits": (
        "Prompt tokens whose KV came back from host memory.",
        "host_hit_tokens",
    ),
    "zse_prefix_host_blocks_kept": (
        "KV blocks that were copied to host memory.",
        "host_blocks_kept",
    ),
    "zse_num_preemptions": ("Sequences that lost their KV to others.", "preemptions"),
    "zse_engine_steps": ("Steps of the engine.", "steps"),
    "zse_computed_tokens": ("Tokens run through the model.", "computed_tokens"),
    "zse_spec_decode_num_drafts": (
        "Runs of guessed tokens that were checked.",
        "speculation.checks",
    ),
    "zse_spec_decode_num_draft_tokens": (
        "Guessed tokens that were checked.",
        "speculation.draft_tokens",
    ),
    "zse_spec_decode_num_accepted_tokens": (
        "Guessed tokens that the model chose too.",
        "speculation.accepted_tokens",
    ),
}
"""Likewise, of what only grows."""

INFOS = ("zse_cache_config_info", "zse_lora_requests_info")
"""Whose labels are what they say."""
VLLM_NAMES = (
    "cache_config_info",
    "lora_requests_info",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "prompt_tokens",
    "generation_tokens",
    "request_success",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
)
"""Without a prefix: what means the same there. Inference gateways read the first five."""
