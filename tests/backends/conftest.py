"""Random tiny checkpoints of every family, as files."""

from __future__ import annotations

from model_pairs import make_pair

__all__ = ["make_pair"]
