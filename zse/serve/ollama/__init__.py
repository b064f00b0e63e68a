"""Ollama's API: what its requests hold, and how they are answered, line by line."""
