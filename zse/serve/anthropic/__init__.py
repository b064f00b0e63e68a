"""Anthropic's Messages API: what its requests hold, and how they are answered."""
