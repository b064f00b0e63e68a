"""What makes a score of a query and a document: a reranker's prompt of both, and what it answers.

Two kinds of models are rerankers. A cross-encoder has a classifier behind its pooling. A language
model that was tuned for it is asked whether the document answers the query; its score is how likely
``yes`` is beside ``no``, which is one row of numbers: the difference of these two rows of its head.
"""

from __future__ import annotations

import math
import struct
from array import array
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from zse.errors import InvalidParameterError, UnsupportedModelError
from zse.format.schemes import Scheme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.reading import Pooling
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec
    from zse.text.tokenizer import Tokenizer

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""What Qwen3-Reranker was tuned with."""
_SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class PairScorer(Protocol):
    """How a model scores pairs of texts."""

    @property
    def pooling(self) -> Pooling:
        """Which states are scored."""

    def prompt(
        self, query: str, document: str, *, instruction: str = "", room: int | None = None
    ) -> tuple[list[int], int | None]:
        """Return the prompt of a pair, and where its second text begins where the model is told.

        Args:
            query: One text.
            document: The other.
            instruction: What is to be judged; empty: as the model was tuned.
            room: Tokens that the prompt may have: the end of the document is cut off; None: any.

        Raises:
            InvalidParameterError: The model takes no instruction.
        """

    def score(self, found: Sequence[float]) -> float:
        """Return the score, from 0 to 1, of what the engine made of a prompt."""


def scorer_of(file: ModelFile, spec: ModelSpec, tokenizer: Tokenizer) -> PairScorer | None:
    """Return how a model scores pairs; None where it is no reranker.

    A language model is taken for one by the name that its checkpoint had.
    """
    if spec.task == "scores":
        return CrossEncoder(spec, tokenizer)
    source = file.header.provenance.get("source", "")
    if spec.family == "qwen3" and "reranker" in str(source).lower():
        return YesNoReranker(file, spec, tokenizer)
    return None


class CrossEncoder:
    """An encoder with a classifier of one score."""

    def __init__(self, spec: ModelSpec, tokenizer: Tokenizer) -> None:
        pooling = spec.head.pooling
        assert pooling != "none"
        self.pooling: Pooling = pooling
        self._tokenizer = tokenizer

    def prompt(
        self, query: str, document: str, *, instruction: str = "", room: int | None = None
    ) -> tuple[list[int], int | None]:
        if instruction:
            raise InvalidParameterError(
                "this model takes no instruction beside the query", param="instruction"
            )
        encode = self._tokenizer.encode
        first, second = (
            encode(text, add_special_tokens=False, parse_special=False)
            for text in (query, document)
        )
        ids, second_from = self._tokenizer.encode_pair(first, second)
        if room is not None and len(ids) > room:
            kept = max(len(second) - (len(ids) - room), 0)
            ids, second_from = self._tokenizer.encode_pair(first, second[:kept])
        return ids, second_from

    def score(self, found: Sequence[float]) -> float:
        return sigmoid(found[0])


class YesNoReranker:
    """A language model that is asked, as Qwen3-Reranker is."""

    pooling: Pooling = "last"

    def __init__(self, file: ModelFile, spec: ModelSpec, tokenizer: Tokenizer) -> None:
        self._file = file
        self._spec = spec
        self._tokenizer = tokenizer

    def prompt(
        self, query: str, document: str, *, instruction: str = "", room: int | None = None
    ) -> tuple[list[int], int | None]:
        encode = self._tokenizer.encode
        asked = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: "
        before, behind = (encode(text, add_special_tokens=False) for text in (_SYSTEM, _ANSWER))
        body = encode(asked + document, add_special_tokens=False, parse_special=False)
        if room is not None:
            body = body[: max(room - len(before) - len(behind), 0)]
        return [*before, *body, *behind], None

    def score(self, found: Sequence[float]) -> float:
        product = math.fsum(a * b for a, b in zip(found, self._difference, strict=True))
        return sigmoid(product * self._spec.head.logit_scale)

    @cached_property
    def _difference(self) -> list[float]:
        """Row of ``yes`` less that of ``no``."""
        yes, no = (self._row(word) for word in ("yes", "no"))
        return [a - b for a, b in zip(yes, no, strict=True)]

    def _row(self, word: str) -> Sequence[float]:
        ids = self._tokenizer.encode(word, add_special_tokens=False)
        if len(ids) != 1 or self._spec.head.weight is None:
            raise UnsupportedModelError(
                f"{word!r} is {len(ids)} tokens to this model; a reranker has one for it"
            )
        return row_of(self._file, self._spec.head.weight.name, ids[0])


def row_of(file: ModelFile, name: str, index: int) -> Sequence[float]:
    """Return a row of a matrix that is plain, or has a scale a row, as every head is.

    Raises:
        UnsupportedModelError: It is neither.
    """
    entry = file.entry(name)
    columns, scheme = entry.shape[1], entry.scheme
    if scheme is Scheme.INT8:
        codes = array("b", file.read_part(name, "qweight", index * columns, columns))
        (scale,) = struct.unpack("<f", file.read_part(name, "scale", index * 4, 4))
        return [code * scale for code in codes]
    if not scheme.is_plain:
        raise UnsupportedModelError(f"the head of this model is {scheme}; expected int8 or plain")
    width = 4 if scheme is Scheme.FP32 else 2
    data = file.read_part(name, "data", index * columns * width, columns * width)
    if scheme is Scheme.BF16:  # the upper half of a float32
        halves = struct.unpack(f"<{columns}H", data)
        data = struct.pack(f"<{columns}I", *[half << 16 for half in halves])
    return struct.unpack(f"<{columns}{'e' if scheme is Scheme.FP16 else 'f'}", data)


def sigmoid(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)), of any number."""
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    return math.exp(logit) / (1 + math.exp(logit))
