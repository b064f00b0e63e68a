"""Vectors as Ollama's clients ask for them: those of the other route."""

import pytest


def test_vectors_are_those_of_the_other_route(real):
    other = real("POST", "/v1/embeddings", json={"input": ["a", "b"]}).json()
    wanted = [entry["embedding"] for entry in other["data"]]
    found = real("POST", "/api/embed", json={"model": "default", "input": ["a", "b"]}).json()
    assert found["embeddings"] == wanted
    assert found["prompt_eval_count"] == other["usage"]["prompt_tokens"]
    one = real("POST", "/api/embeddings", json={"model": "default", "prompt": "a"}).json()
    assert one["embedding"] == pytest.approx(wanted[0])


def test_a_text_that_is_too_long_is_cut_unless_that_is_forbidden(real):
    body = {"model": "default", "input": "a" * 100_000}
    assert real("POST", "/api/embed", json=body).status_code == 200
    refused = real("POST", "/api/embed", json={**body, "truncate": False})
    assert refused.status_code == 400
    assert isinstance(refused.json()["error"], str)
