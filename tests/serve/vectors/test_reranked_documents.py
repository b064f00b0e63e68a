"""Documents that a reranker of the server has read with the question, and those that none has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zse.serve.documents.libraries import Libraries
from zse.serve.documents.reranking import reranker_here

DOCS, SEARCH = "/api/rag/documents", "/api/rag/search"
TEXTS = ("Kites rise above the harbor", "the old harbor", "the harbor", "rise above the harbor")
QUESTION = "the harbor"


@pytest.fixture
def rag(reranker, state, tmp_path):
    state.settings = replace(state.settings, home=tmp_path)
    for text in TEXTS:
        asked = {"name": f"{text}.txt", "content": text}
        assert reranker("POST", DOCS, json=asked).status_code == 201
    yield reranker
    state.one_of(Libraries).close()


def found(rag, **asked):
    response = rag("POST", SEARCH, json={"query": QUESTION, **asked})
    assert response.status_code == 200, response.text
    return response.json()


def test_chunks_come_in_the_order_and_with_the_scores_of_the_reranker(rag, state):
    scored = rag("POST", "/v1/rerank", json={"query": QUESTION, "documents": list(TEXTS)}).json()
    wanted = [(TEXTS[one["index"]], one["relevance_score"]) for one in scored["results"]]
    told = found(rag)
    assert told["reranker"] == "scores" == reranker_here(state)
    assert [one["text"] for one in told["results"]] == [text for text, _ in wanted]
    assert [one["score"] for one in told["results"]] == pytest.approx(
        [score for _, score in wanted], abs=1e-6
    )
    assert [one["number"] for one in told["results"]] == [1, 2, 3, 4]
    assert state.in_flight == 0


def test_a_reranker_reads_more_than_is_asked_for(rag):
    assert found(rag, top_k=1)["results"][0]["text"] == found(rag)["results"][0]["text"]


def test_none_leaves_the_rankings_as_they_are(rag):
    told = found(rag, reranker="none")
    assert told["reranker"] == ""
    assert {one["text"] for one in told["results"]} == set(TEXTS)
    assert all(one["score"] < 0.05 for one in told["results"]), "reciprocal ranks"


def test_who_names_a_reranker_gets_that_or_an_error(rag, check_error):
    assert found(rag, reranker="scores")["reranker"] == "scores"
    asked = {"query": QUESTION, "reranker": "nobody"}
    check_error(rag("POST", SEARCH, json=asked), 404, param="model", code="model_not_found")


def test_a_model_that_scores_no_pairs_is_refused_by_name(embedder, state, tmp_path, check_error):
    state.settings = replace(state.settings, home=tmp_path)
    embedder("POST", DOCS, json={"name": "a", "content": QUESTION, "embedder": "none"})
    assert found(embedder)["reranker"] == ""
    asked = {"query": QUESTION, "reranker": "vectors"}
    check_error(embedder("POST", SEARCH, json=asked), 400, param="reranker")
    state.one_of(Libraries).close()


def test_a_question_without_hits_asks_no_reranker(rag, models):
    engine = models["scores"].engine
    before = engine.stats().steps
    found(rag)
    assert engine.stats().steps > before
    before = engine.stats().steps
    assert rag("POST", SEARCH, json={"query": "kit zzz"}).json()["results"] == []
    assert engine.stats().steps == before


def test_a_chunk_longer_than_the_reranker_reads_is_cut_for_it_and_told_whole(rag):
    long = "harbor " + "the old kites rise " * 30
    assert rag("POST", DOCS, json={"name": "long", "content": long}).status_code == 201
    told = found(rag, query="harbor", top_k=5)
    assert long.strip() in [one["text"] for one in told["results"]]
