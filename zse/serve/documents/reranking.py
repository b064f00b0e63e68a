"""The second look: a reranker reads the question with each of the best chunks, and orders those.

Rankings by words and by vectors look at a chunk without the question, so that thousands can be
compared; a reranker looks at both together and costs a prompt a chunk, so it is shown few.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import InvalidParameterError, NotFoundError
from zse.records import record
from zse.serve.asking import let_go, model_for
from zse.serve.http.requests import state_of
from zse.serve.vectors.pairs import Scorers, scores_of_pairs
from zse.serve.vectors.protocol import ScoreRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from zse.serve.documents.ranking import Hit
    from zse.serve.state import AppState

LEAST_READ = 20
"""Chunks that a reranker reads with a question; more where more are asked for."""
NO_RERANKER = "none"
"""What is asked for where rankings by words and vectors are to stand as they are."""


@record
class Reranked:
    """Hits in their order, and the model that gave them it; none where no model did."""

    hits: Sequence[Hit]
    reranker: str = ""


def reranker_here(state: AppState) -> str:
    """Return the name of a model of this server that scores pairs; empty without one."""
    scorers = state.one_of(Scorers)
    models = [entry.model for entry in state.models]
    return next((model.name for model in models if scorers.of(model) is not None), "")


async def rerank(
    request: Request, question: str, hits: Sequence[Hit], asked: str | None
) -> Reranked:
    """Return hits in the order in which a reranker finds that they answer a question.

    Args:
        request: What asks.
        question: The question.
        hits: All that it is to read.
        asked: The model that was asked for; ``none`` for none; None takes one that is here.

    Raises:
        InvalidParameterError: The model that was asked for is no reranker.
        ZSEError: As a request to rerank; but a model that was not asked for and has just left is
            gone without.
    """
    name = reranker_here(state_of(request)) if asked is None else asked
    if name in ("", NO_RERANKER) or not hits or not question.strip():
        return Reranked(hits=hits)
    try:
        return await _ordered(request, question, hits, name)
    except NotFoundError:
        if asked is not None:
            raise
        return Reranked(hits=hits)


async def _ordered(request: Request, question: str, hits: Sequence[Hit], name: str) -> Reranked:
    model = await model_for(request, name)
    scorer = state_of(request).one_of(Scorers).of(model)
    if scorer is None:
        raise InvalidParameterError(
            f"The model '{model.name}' is no reranker.",
            param="reranker",
            hint="Leave 'reranker' out, or name one that /v1/rerank scores from 0 to 1 with.",
        )
    pairs = [(question, f"{hit.heading}\n{hit.text}".strip()) for hit in hits]
    body = ScoreRequest(text_1=question, text_2=[], truncate=True)
    scores, _ = await scores_of_pairs(
        request, body, model, scorer, pairs, instruction="", params=("query", "text")
    )
    let_go(request)
    scored = [replace(hit, score=score) for hit, score in zip(hits, scores, strict=True)]
    return Reranked(hits=sorted(scored, key=lambda hit: -hit.score), reranker=model.name)
