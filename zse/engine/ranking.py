"""Documents in the order of how well they answer a query."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zse.engine.scoring import scorer_of
from zse.engine.vectors import read_vectors, unit, vectors_of_texts
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.loading import LoadedModel
    from zse.engine.scoring import PairScorer


@record
class Ranked:
    """A document's place among those that were given, and its score."""

    index: int
    score: float


def ranked(
    model: LoadedModel,
    query: str,
    documents: Sequence[str],
    instruction: str = "",
    *,
    truncate: bool = False,
) -> list[Ranked]:
    """Return all documents, the best first; as ``LLM.rerank``. Drives the engine."""
    scorer = scorer_of(model.reader, model.core.runner.spec, model.tokenizer)
    if scorer is None:
        scores = _cosines(model, query, documents)
    else:
        room = model.core.capacity_tokens if truncate else None
        scores = _scores(model, scorer, query, documents, instruction, room)
    found = [Ranked(index=index, score=score) for index, score in enumerate(scores)]
    return sorted(found, key=lambda each: -each.score)


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors of length 1, from -1 to 1."""
    product = math.fsum(a * b for a, b in zip(first, second, strict=True))
    return max(-1.0, min(1.0, product))


def _scores(
    model: LoadedModel,
    scorer: PairScorer,
    query: str,
    documents: Sequence[str],
    instruction: str,
    room: int | None,
) -> list[float]:
    pairs = [
        scorer.prompt(query, document, instruction=instruction, room=room) for document in documents
    ]
    prompts = [prompt for prompt, _ in pairs]
    found = read_vectors(model.core, prompts, scorer.pooling, [second for _, second in pairs])
    return [scorer.score(numbers) for numbers in found]


def _cosines(model: LoadedModel, query: str, documents: Sequence[str]) -> list[float]:
    encode = model.tokenizer.encode
    prompts = [encode(text, parse_special=False) for text in (query, *documents)]
    first, *others = map(unit, vectors_of_texts(model, prompts, None))
    return [cosine(first, other) for other in others]
