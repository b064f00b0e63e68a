"""Tiny models with transformers beside them."""

from __future__ import annotations

from model_pairs import make_pair

__all__ = ["make_pair"]
