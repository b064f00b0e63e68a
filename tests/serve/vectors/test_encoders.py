"""Embedders and rerankers behind the server's routes, on a real engine."""

from __future__ import annotations

import base64
import math
import struct

import pytest

from zse import LLM

TEXTS = ["Kites rise above the old harbor", "rise", "the harbor"]


def vectors_of(response):
    assert response.status_code == 200, response.text
    return [entry["embedding"] for entry in response.json()["data"]]


def test_vectors_are_those_of_llm_embed(embedder, files, state):
    answer = embedder("POST", "/v1/embeddings", json={"input": TEXTS})
    with LLM(files["vectors"], threads=1) as llm:
        wanted = llm.embed(TEXTS)
        count = sum(len(llm.tokenizer.encode(text)) for text in TEXTS)
    for found, vector in zip(vectors_of(answer), wanted, strict=True):
        assert found == pytest.approx(list(vector), abs=1e-6)
    assert answer.json()["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert state.in_flight == 0


def test_numbers_are_cut_and_written_as_asked(embedder):
    (short,) = vectors_of(
        embedder("POST", "/v1/embeddings", json={"input": "rise", "dimensions": 8})
    )
    assert len(short) == 8
    assert math.hypot(*short) == pytest.approx(1, abs=1e-6)
    body = {"input": "rise", "dimensions": 8, "encoding_format": "base64"}
    (text,) = vectors_of(embedder("POST", "/v1/embeddings", json=body))
    assert list(struct.unpack("<8f", base64.b64decode(text))) == short


def test_many_texts_of_one_body_are_read_in_few_steps(embedder, models):
    engine = models["vectors"].engine
    before = engine.stats().steps
    texts = ["rise"] * 100
    assert len(vectors_of(embedder("POST", "/v1/embeddings", json={"input": texts}))) == 100
    assert engine.stats().steps - before < 20


@pytest.mark.parametrize("truncate", [True, "END"])
def test_a_long_text_is_refused_or_cut_as_asked(embedder, truncate, check_error):
    long = " ".join(["rise"] * 40)
    for asked in ({}, {"truncate": False}, {"truncate": "NONE"}):
        response = embedder("POST", "/v1/embeddings", json={"input": long, **asked})
        check_error(response, 400, param="input", code="context_length_exceeded")
    body = {"input": [long, " ".join(["rise"] * 14)], "truncate": truncate}
    answer = embedder("POST", "/v1/embeddings", json=body)
    cut, whole = vectors_of(answer)
    assert cut == pytest.approx(whole, abs=1e-6)
    assert answer.json()["usage"]["total_tokens"] == 32
    huge = {"input": "rise " * 100_000, "truncate": truncate}
    assert embedder("POST", "/v1/embeddings", json=huge).json()["usage"]["total_tokens"] == 16
    ids = {"input": [[5] * 50, [5] * 16], "truncate": truncate}
    first, second = vectors_of(embedder("POST", "/v1/embeddings", json=ids))
    assert first == pytest.approx(second, abs=1e-6)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/responses", {"input": "Hello"}),
    ],
)
@pytest.mark.parametrize("task", ["vectors", "scores"])
def test_what_writes_no_text_says_which_routes_there_are(
    task, path, body, make_caller, models, check_error
):
    message = check_error(make_caller(models[task])("POST", path, json=body), 400, param="model")
    route = "/v1/embeddings" if task == "vectors" else "/v1/rerank"
    assert f"The model '{task}' makes {task} of texts and writes none: use {route}" in message


def test_the_messages_of_anthropic_are_refused_in_their_words(embedder):
    body = {"model": "vectors", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    response = embedder("POST", "/v1/messages", json=body)
    assert (response.status_code, response.json()["type"]) == (400, "error")
    assert "makes vectors of texts and writes none" in response.json()["error"]["message"]


def test_a_reranker_scores_pairs_as_llm_rerank_does(reranker, files):
    query, documents = "the old kit", ["rise above", "the harbor", "kites"]
    body = {"query": query, "documents": documents, "top_n": 2}
    answer = reranker("POST", "/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    with LLM(files["scores"], threads=1) as llm:
        wanted = llm.rerank(query, documents)
    results = answer.json()["results"]
    assert [each["index"] for each in results] == [each.index for each in wanted[:2]]
    for result, each in zip(results, wanted, strict=False):
        assert result["relevance_score"] == pytest.approx(each.score, abs=1e-6)
        assert result["document"] == {"text": documents[each.index]}
    pairs = {"text_1": query, "text_2": documents}
    data = reranker("POST", "/v1/score", json=pairs).json()["data"]
    by_index = {each.index: each.score for each in wanted}
    assert [each["score"] for each in data] == pytest.approx(
        [by_index[index] for index in range(3)], abs=1e-6
    )


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/v1/embeddings", {"input": "rise"}, "model", None),
        ("/v1/rerank", {"query": "", "documents": ["rise"]}, "query", None),
        ("/v1/rerank", {"query": "rise", "documents": ["rise", ""]}, "documents", None),
        (
            "/v1/rerank",
            {"query": "rise", "documents": ["rise " * 40]},
            "documents",
            "context_length_exceeded",
        ),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "instruction": "c"}, "instruction", None),
    ],
)
def test_what_a_reranker_cannot_do_is_refused_by_name(
    path, body, param, code, reranker, check_error
):
    check_error(reranker("POST", path, json=body), 400, param=param, code=code)


def test_the_end_of_a_document_is_cut_where_that_is_asked(reranker):
    documents = ["rise " * 40, "rise " * 12]
    body = {"query": "rise", "documents": documents, "truncate": True}
    first, second = reranker("POST", "/v1/rerank", json=body).json()["results"]
    assert first["relevance_score"] == pytest.approx(second["relevance_score"], abs=1e-6)
