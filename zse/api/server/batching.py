"""Batching of a server: always on, for every route; ``BatchingState`` says how many at once."""

from __future__ import annotations

from zse.serve.admin.batching import BatchingState
from zse.serve.openai.chat import create_chat_completion as batched_chat_completion
from zse.serve.openai.completions import create_completion as batched_text_completion

__all__ = ["BatchingState", "batched_chat_completion", "batched_text_completion"]
