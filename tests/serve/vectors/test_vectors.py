"""Embeddings, ranks and scores over a real engine."""

import base64
import math
import struct
from dataclasses import replace

import numpy as np
import pytest

from zse.engine.ranking import cosine
from zse.engine.vectors import unit
from zse.errors import UnsupportedModelError
from zse.format import ZSEReader
from zse.models.pooling import POOLING_SECTION
from zse.options import load_options
from zse.serve.vectors.protocol import MAX_INPUTS
from zse.serve.vectors.reading import pooling_of
from zse.server_options import ServeOptions


def embed(real, given, **fields):
    return real("POST", "/v1/embeddings", json={"model": "bytes", "input": given, **fields})


def vectors_of(response):
    assert response.status_code == 200, response.text
    return [entry["embedding"] for entry in response.json()["data"]]


def test_an_embedding_has_openais_shape_and_length_one(real, loaded):
    answer = embed(real, ["Hello", "world!"]).json()
    assert set(answer) == {"object", "data", "model", "usage"}
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    assert {entry["object"] for entry in answer["data"]} == {"embedding"}
    assert answer["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
    for entry in answer["data"]:
        assert len(entry["embedding"]) == loaded.vector_size
        assert math.hypot(*entry["embedding"]) == pytest.approx(1, abs=1e-6)


def test_texts_and_their_token_ids_have_the_same_vectors(real, loaded):
    ids = [loaded.tokenizer.encode(text) for text in ("Hello", "world!")]
    by_text = vectors_of(embed(real, ["Hello", "world!"]))
    assert vectors_of(embed(real, ids)) == by_text
    assert vectors_of(embed(real, "Hello"))[0] == pytest.approx(by_text[0], abs=1e-5)
    assert vectors_of(embed(real, ids[0]))[0] == pytest.approx(by_text[0], abs=1e-5)


def test_base64_holds_the_same_numbers_to_the_bit(real, loaded):
    texts = ["Hello", "world!"]
    for numbers, text in zip(
        vectors_of(embed(real, texts)),
        vectors_of(embed(real, texts, encoding_format="base64")),
        strict=True,
    ):
        data = base64.b64decode(text)
        assert list(struct.unpack(f"<{loaded.vector_size}f", data)) == numbers


def test_the_client_of_openai_reads_them(real, loaded):
    """It asks for base64 unless told otherwise, and decodes it with numpy."""
    (text,) = vectors_of(embed(real, "Hello", encoding_format="base64"))
    found = np.frombuffer(base64.b64decode(text), dtype="float32")
    assert found.tolist() == vectors_of(embed(real, "Hello"))[0]


def test_fewer_dimensions_are_the_first_ones_at_length_one(real):
    (whole,) = vectors_of(embed(real, "Hello"))
    (short,) = vectors_of(embed(real, "Hello", dimensions=8))
    assert len(short) == 8
    assert short == pytest.approx([value / math.hypot(*whole[:8]) for value in whole[:8]], 1e-4)
    (raw,) = vectors_of(embed(real, "Hello", normalize=False))
    assert math.hypot(*raw) > 1.1
    assert unit(raw).tolist() == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "fields", "param"),
    [
        ("", {}, "input"),
        ([], {}, "input"),
        ([[]], {}, "input"),
        (["a", ""], {}, "input"),
        (["a", 1], {}, "input"),
        ([[1], 2], {}, "input"),
        ([262], {}, "input"),
        ([-1], {}, "input"),
        ([True], {}, "input[0]"),
        (["a"] * (MAX_INPUTS + 1), {}, "input"),
        ("a", {"dimensions": 0}, "dimensions"),
        ("a", {"dimensions": 65}, "dimensions"),
        ("a", {"dimensions": 8, "normalize": False}, "normalize"),
        ("a", {"encoding_format": "hex"}, "encoding_format"),
        ("a", {"priority": 101}, "priority"),
        ("a", {"cache_salt": "x" * 129}, "cache_salt"),
    ],
)
def test_what_has_no_vector_is_refused_by_name(real, given, fields, param, check_error):
    check_error(embed(real, given, **fields), 400, param=param)


def test_a_text_longer_than_the_context_is_refused_and_never_cut(real, loaded, check_error):
    for given in ("x" * 513, [65] * 513):
        message = check_error(
            embed(real, given), 400, param="input", code="context_length_exceeded"
        )
        assert "maximum context length is 512 tokens" in message
    assert len(vectors_of(embed(real, [65] * loaded.max_context))) == 1


def test_more_texts_than_run_at_once_are_read_without_more_room(real, state, loaded):
    state.options = ServeOptions(max_queue=0, load=load_options(max_sequences=4))
    texts = [f"text {index}" for index in range(20)]
    vectors = vectors_of(embed(real, texts))
    assert len({tuple(vector) for vector in vectors}) == 20
    assert state.in_flight == 0


def test_a_text_writes_no_control_token(real):
    (written,) = vectors_of(embed(real, "<s>"))
    (meant,) = vectors_of(embed(real, [256]))
    assert written != pytest.approx(meant, abs=1e-3)


def test_the_mean_of_all_states_is_made_where_the_server_is_told_so(real, state, loaded):
    (last,) = vectors_of(embed(real, "abc"))
    state.options = ServeOptions(pooling="mean")
    (mean,) = vectors_of(embed(real, "abc"))
    assert mean != pytest.approx(last, abs=1e-3)
    one = vectors_of(embed(real, [65], normalize=False))[0]
    assert one == pytest.approx(
        np.asarray(vectors_of(embed(real, [[65]], normalize=False))[0]), abs=1e-5
    )


class PoolingFile:
    def __init__(self, data):
        self.data = data

    def has_section(self, name):
        return name == POOLING_SECTION

    def section(self, name):
        assert name == POOLING_SECTION
        return self.data


@pytest.mark.parametrize(
    ("data", "pooling"),
    [
        (b'{"pooling_mode_mean_tokens": true}', "mean"),
        (b'{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false}', "last"),
        (b"{}", "last"),
    ],
)
def test_the_model_says_how_its_vectors_are_made_unless_the_server_does(loaded, data, pooling):
    model = replace(loaded, resources=(PoolingFile(data),))
    assert pooling_of(model, "auto") == pooling
    assert pooling_of(model, "mean") == "mean"
    assert pooling_of(loaded, "auto") == "last"


def test_a_pooling_that_nobody_can_read_is_refused(loaded):
    model = replace(loaded, resources=(PoolingFile(b"{"),))
    with pytest.raises(UnsupportedModelError, match="is not JSON"):
        pooling_of(model, "auto")


def test_a_conversion_keeps_how_vectors_are_made(bytes_model):
    with ZSEReader(bytes_model) as reader:
        assert b"lasttoken" in bytes(reader.section(POOLING_SECTION))


DOCUMENTS = ["zebra", "Hello", "Hello!", "a longer text that says something else"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_ordered_by_their_cosine_with_the_query(real, path):
    body = {"model": "bytes", "query": "Hello", "documents": DOCUMENTS}
    answer = real("POST", path, json=body).json()
    query, *rest = vectors_of(embed(real, ["Hello", *DOCUMENTS]))
    scores = [cosine(query, vector) for vector in rest]
    results = answer["results"]
    assert [entry["index"] for entry in results] == sorted(range(4), key=lambda i: -scores[i])
    for entry in results:
        assert entry["relevance_score"] == pytest.approx(scores[entry["index"]], abs=1e-4)
        assert entry["document"] == {"text": DOCUMENTS[entry["index"]]}
    assert results[0]["index"] == 1
    assert results[0]["relevance_score"] == pytest.approx(1, abs=1e-4)
    assert answer["usage"]["total_tokens"] == len("Hello" + "".join(DOCUMENTS))


def test_only_the_nearest_are_told_without_their_texts_if_that_is_asked(real):
    body = {
        "query": "Hello",
        "documents": [{"text": text} for text in DOCUMENTS],
        "top_n": 2,
        "return_documents": False,
    }
    results = real("POST", "/v1/rerank", json=body).json()["results"]
    assert [set(entry) for entry in results] == [{"index", "relevance_score"}] * 2


def test_scores_are_of_pairs_or_of_one_text_with_each(real):
    pairs = {"text_1": ["Hello", "zebra"], "text_2": ["Hello", "Hello"]}
    first = real("POST", "/v1/score", json=pairs).json()
    assert set(first) == {"id", "object", "created", "model", "data", "usage"}
    assert first["data"][0]["score"] == pytest.approx(1, abs=1e-4)
    one = real("POST", "/v1/score", json={"text_1": "zebra", "text_2": ["Hello", "zebra"]}).json()
    assert one["data"][0]["score"] == pytest.approx(first["data"][1]["score"], abs=1e-4)
    assert one["data"][1]["score"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 1025}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "", "documents": ["b"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": ["b", "x" * 513]}, "documents"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(real, path, body, param, check_error):
    response = real("POST", path, json=body)
    code = "context_length_exceeded" if "maximum context" in response.text else None
    check_error(response, 400, param=param, code=code)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"messages": [], "input": "a"}, "messages"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["x"]}, "rank_fields"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "softmax": True}, "softmax"),
    ],
)
def test_what_would_change_a_vector_is_refused_by_name(real, path, body, param, check_error):
    response = real("POST", path, json=body)
    check_error(response, 400, param=param, code="unsupported_parameter")
