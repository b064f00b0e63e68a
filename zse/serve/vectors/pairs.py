"""Pairs of texts to a reranker: how each model scores them, and their prompts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from zse.engine.scoring import scorer_of
from zse.errors import InvalidParameterError
from zse.serve.preparing import in_turn
from zse.serve.vectors.reading import Prompts, check_lengths, let_in, read_vectors, turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from zse.engine.async_engine import AsyncEngine
    from zse.engine.scoring import PairScorer
    from zse.serve.state import AppState, LoadedModel
    from zse.serve.vectors.protocol import VectorFields

TextPair = tuple[str, str]
"""A query and a document."""


class Scorers:
    """How the models of a server score pairs; each is found once, and forgotten with its engine."""

    def __init__(self, _state: AppState) -> None:
        self._found: WeakKeyDictionary[AsyncEngine, PairScorer | None] = WeakKeyDictionary()

    def of(self, model: LoadedModel) -> PairScorer | None:
        """Return how a model scores pairs; None where it is no reranker."""
        if model.spec is None or not model.resources:
            return None
        if model.engine not in self._found:
            scorer = scorer_of(model.resources[0], model.spec, model.tokenizer)
            self._found[model.engine] = scorer
        return self._found[model.engine]


async def scores_of_pairs(
    request: Request,
    body: VectorFields,
    model: LoadedModel,
    scorer: PairScorer,
    pairs: Sequence[TextPair],
    *,
    instruction: str,
    params: tuple[str, str],
) -> tuple[list[float], int]:
    """Return the score of each pair, from 0 to 1, and the tokens of all prompts.

    Args:
        request: What is to be answered.
        body: Its fields.
        model: What scores.
        scorer: How it does.
        pairs: Queries and documents.
        instruction: What is to be judged; empty: as the model was tuned.
        params: Names of the fields that the queries and the documents come from.

    Raises:
        ZSEError: As ``encode_texts``; or the model takes no instruction.
    """
    for texts in pairs:
        for text, param in zip(texts, params, strict=True):
            if not text:
                raise InvalidParameterError(f"'{param}' holds an empty text.", param=param)
    names = [params[1]] * len(pairs)
    kept = let_in(request, body, model, pairs, params=names)
    room = model.max_context if body.cuts else None
    prompts: list[list[int]] = []
    second_from: list[int | None] = []
    for group in turns(kept, _size_of):
        job = partial(_prompts, scorer, group, instruction, room)
        for ids, second in await in_turn(request, job, size=sum(map(_size_of, group))):
            prompts.append(ids)
            second_from.append(second)
    check_lengths(prompts, model, params=names)
    found = await read_vectors(
        request,
        body,
        model,
        Prompts(token_ids=prompts, second_from=second_from),
        param=params[1],
        pooling=scorer.pooling,
    )
    return [scorer.score(numbers) for numbers in found.vectors], found.num_tokens


def _size_of(texts: tuple[str, ...]) -> int:
    return sum(map(len, texts))


def _prompts(
    scorer: PairScorer, pairs: Sequence[tuple[str, ...]], instruction: str, room: int | None
) -> list[tuple[list[int], int | None]]:
    return [
        scorer.prompt(query, document, instruction=instruction, room=room)
        for query, document in pairs
    ]
