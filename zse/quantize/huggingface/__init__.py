"""Back to Hugging Face: a .zse file as a ``transformers`` model, computing on its packed weights.

``load_zse_model`` is a bridge for tools, evaluations and comparisons; ``zse.LLM`` is the way to
serve.
"""

from __future__ import annotations

from zse.quantize.huggingface.load import load_zse_model

__all__ = ["load_zse_model"]
