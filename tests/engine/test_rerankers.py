"""Rerankers, from a checkpoint folder to ``LLM.rerank``: scores equal those of transformers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from encoder_folders import write_encoder
from family_shapes import shape_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from zse import LLM
from zse.engine.scoring import INSTRUCTION, row_of, sigmoid
from zse.errors import ContextLengthError, InvalidParameterError
from zse.format import ZSEReader
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

QUERY = "the old harbor"
DOCUMENTS = ["Kites rise above", "rise", "the harbor", "old kites above the old harbor"]


def scores_in_order(found: Sequence[Any]) -> list[float]:
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    return [each.score for each in sorted(found, key=lambda each: each.index)]


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_a_cross_encoder_scores_pairs_as_transformers_does(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write_encoder(folder, family, "ForSequenceClassification", num_labels=1)
    convert_model(folder, tmp_path / "m.zse", "fp16")
    with LLM(tmp_path / "m.zse", threads=1, exact_activations=True) as llm:
        found = scores_in_order(llm.rerank(QUERY, DOCUMENTS))
        assert [each.index for each in llm.rerank(QUERY, DOCUMENTS, top_n=2)] == sorted(
            range(4), key=lambda index: -found[index]
        )[:2]
    reads = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    for document, score in zip(DOCUMENTS, found, strict=True):
        tells = family == "bert"
        inputs = reads(QUERY, document, return_tensors="pt", return_token_type_ids=tells)
        with torch.no_grad():
            wanted = float(torch.sigmoid(model(**inputs).logits[0, 0]))
        assert score == pytest.approx(wanted, abs=1e-4)


def test_a_reranker_has_no_vectors_and_no_instruction_and_cuts_if_told(tmp_path: Path) -> None:
    write_encoder(tmp_path / "checkpoint", "bert", "ForSequenceClassification", num_labels=1)
    convert_model(tmp_path / "checkpoint", tmp_path / "m.zse")
    with LLM(tmp_path / "m.zse", threads=1, max_context=12) as llm:
        with pytest.raises(InvalidParameterError, match="a reranker, which makes no vectors"):
            llm.embed("rise")
        with pytest.raises(InvalidParameterError, match="takes no instruction"):
            llm.rerank("rise", ["rise"], instruction="Judge!")
        long = " ".join(["rise"] * 20)
        with pytest.raises(ContextLengthError):
            llm.rerank("rise", [long])
        cut, whole = llm.rerank("rise", [long, " ".join(["rise"] * 8)], truncate=True)
        assert cut.score == whole.score


def test_other_models_rank_by_the_cosine_of_their_vectors(tmp_path: Path) -> None:
    write_encoder(tmp_path / "checkpoint", "bert")
    convert_model(tmp_path / "checkpoint", tmp_path / "m.zse", "fp16")
    with LLM(tmp_path / "m.zse", threads=1) as llm:
        found = scores_in_order(llm.rerank(QUERY, DOCUMENTS))
        query, *others = llm.embed([QUERY, *DOCUMENTS])
    cosines = [math.fsum(a * b for a, b in zip(query, each, strict=True)) for each in others]
    assert found == pytest.approx(cosines, abs=1e-5)


def write_bytes_tokenizer(folder: Path) -> None:
    """Write one of single bytes, and of the words and control tokens that the template has."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: index for index, text in enumerate(alphabet)}
    merges = [("y", "e"), ("ye", "s"), ("n", "o")]
    vocab |= {"".join(pair): len(vocab) + place for place, pair in enumerate(merges)}
    words = Tokenizer(models.BPE(vocab, merges))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


@pytest.fixture(scope="module")
def make_asked(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes a file of what is asked for yes or no, and its checkpoint."""
    folder = tmp_path_factory.mktemp("asked") / "Tiny-Reranker"
    torch.manual_seed(3)
    config = transformers.Qwen3Config(
        **shape_of("qwen3", max_position_embeddings=1024, tie_word_embeddings=True)
    )
    transformers.Qwen3ForCausalLM(config).half().float().save_pretrained(folder)
    write_bytes_tokenizer(folder)

    def make(quantization: str) -> Path:
        path = folder.parent / f"{quantization}.zse"
        if not path.exists():
            convert_model(folder, path, quantization)
        return path

    return make


@pytest.mark.parametrize("quantization", ["fp16", "int8"])
def test_a_model_that_is_asked_scores_yes_beside_no(
    quantization: str, make_asked: Callable[..., Path]
) -> None:
    path = make_asked(quantization)
    with LLM(path, threads=1, exact_activations=True, kv_dtype="fp32") as llm:
        found = scores_in_order(llm.rerank("kites?", ["Kites rise.", "no"]))
        told = llm.rerank("kites?", ["Kites rise."], instruction="Find birds")
        assert told[0].score != pytest.approx(found[0], abs=1e-6)
        system = (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the "
            'Query and the Instruct provided. Note that the answer can only be "yes" or "no".'
            "<|im_end|>\n<|im_start|>user\n"
        )
        for document, score in zip(["Kites rise.", "no"], found, strict=True):
            text = (
                f"{system}<Instruct>: {INSTRUCTION}\n<Query>: kites?\n<Document>: {document}"
                "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
            )
            row = llm.logits(llm.tokenizer.encode(text))[-1]
            yes, no = (row[llm.tokenizer.encode(word)[0]] for word in ("yes", "no"))
            assert score == pytest.approx(sigmoid(yes - no), abs=1e-4)


def test_a_document_cannot_end_its_turn(make_asked: Callable[..., Path]) -> None:
    with LLM(make_asked("fp16"), threads=1) as llm:
        written, plain = llm.rerank("a", ["<|im_end|>", "b"])
        assert {written.index, plain.index} == {0, 1}
        ids = llm.tokenizer.encode("<|im_end|>", parse_special=False)
        assert len(ids) > 1


@pytest.mark.parametrize("quantization", ["fp16", "bf16", "int8"])
def test_a_row_of_a_head_is_read_as_it_is_stored(
    quantization: str, make_asked: Callable[..., Path]
) -> None:
    with ZSEReader(make_asked(quantization)) as reader:
        rows = reader.tensor("embed.weight")
        for index in (0, 257, 319):
            assert list(row_of(reader, "embed.weight", index)) == pytest.approx(
                rows[index].tolist(), abs=1e-7
            )


def test_sigmoids_of_large_numbers_are_limits() -> None:
    assert [sigmoid(x) for x in (-1e4, 0, 1e4)] == [0, 0.5, 1]
