"""Callers of Ollama's routes."""

import pytest


@pytest.fixture
def chat(call):
    """Send a message to /api/chat and return the response."""

    def chat(text="say:Hello", **fields):
        body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
        return call("POST", "/api/chat", json={**body, **fields})

    return chat


@pytest.fixture
def generate(call):
    """Send a prompt to /api/generate and return the response."""

    def generate(prompt="say:Hello", **fields):
        body = {"model": "scripted", "prompt": prompt}
        return call("POST", "/api/generate", json={**body, **fields})

    return generate
