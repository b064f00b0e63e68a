"""From texts to vectors: encoded, read by the engine like any other prompt, brought to length 1."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, cast

from zse.engine.admission import check_text
from zse.engine.reading import PromptQuery
from zse.engine.vectors import pooling_of_files
from zse.errors import ContextLengthError
from zse.records import record
from zse.serve.generation import Generation
from zse.serve.http.errors import BadRequestError
from zse.serve.http.requests import state_of
from zse.serve.http.streaming import race
from zse.serve.openai.sampling import read_order
from zse.serve.preparing import admit, in_turn
from zse.serve.text_workers import SHORT_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.requests import Request

    from zse.engine.reading import Pooling
    from zse.serve.state import LoadedModel
    from zse.serve.vectors.protocol import VectorFields


@record
class Vectors:
    """What texts became."""

    vectors: Sequence[Sequence[float]]
    """One for each text, as the model has it."""
    num_tokens: int


async def encode_texts(
    request: Request,
    body: VectorFields,
    model: LoadedModel,
    items: Sequence[str | list[int]],
    *,
    params: Sequence[str],
) -> list[list[int]]:
    """Let a request in and return the token ids of its texts, each text encoded in a turn.

    Args:
        request: What is to be answered.
        body: Its fields.
        model: What is to read them.
        items: Texts, or their token ids.
        params: Name of the field that each comes from.

    Raises:
        BadRequestError: A text is empty.
        ContextLengthError: A text is longer than the context.
        OverloadedError: There is no room.
    """
    for item, param in zip(items, params, strict=True):
        if isinstance(item, str):
            check_text(item, max_context=model.max_context, param=param)
    num_choices = min(len(items), state_of(request).max_running)
    admit(request, num_choices=num_choices, size=sum(map(len, items)))
    prompts: list[list[int]] = []
    for group in _turns(items):
        job = partial(_encode, group, body, model)
        prompts += await in_turn(request, job, size=sum(map(len, group)))
    for ids, param in zip(prompts, params, strict=True):
        _check_ids(ids, model, param=param)
    return prompts


def _turns(items: Sequence[str | list[int]]) -> Iterator[list[str | list[int]]]:
    """Yield the texts of one turn after the other: short ones together, a long one alone."""
    group: list[str | list[int]] = []
    size = 0
    for item in items:
        if group and size + len(item) > SHORT_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(item)
        size += len(item)
    if group:
        yield group


def _encode(
    items: Sequence[str | list[int]], body: VectorFields, model: LoadedModel
) -> list[list[int]]:
    """Return token ids with those around them that the tokenizer adds; texts write no others."""
    adds = body.add_special_tokens is not False
    encode = partial(model.tokenizer.encode, add_special_tokens=adds, parse_special=False)
    return [encode(item) if isinstance(item, str) else item for item in items]


async def read_vectors(
    request: Request,
    body: VectorFields,
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    *,
    param: str,
) -> Vectors:
    """Have prompts read; ``param`` names the field that they come from.

    Raises:
        ContextLengthError: A prompt is longer than the context.
        OverloadedError: The queue is full.
        ClientGoneError: The client left; the work was cancelled.
    """
    state = state_of(request)
    query = PromptQuery(pooling=pooling_of(model, state.options.pooling), generates=False)
    order = read_order(body, model, request.state, prompts, query=query, param=param)
    generation = Generation(state, model, order)
    await race(generation.whole(), request.receive, state.terminate)
    found = [generation.reports[place].vector for place in range(len(prompts))]
    return Vectors(
        vectors=[vector for vector in found if vector is not None],
        num_tokens=generation.prompt_tokens,
    )


def _check_ids(ids: list[int], model: LoadedModel, *, param: str) -> None:
    if not ids:
        raise BadRequestError(f"'{param}' holds an empty text.", param=param)
    if len(ids) > model.max_context:
        raise ContextLengthError(
            f"This model's maximum context length is {model.max_context} tokens. However, a text "
            f"of '{param}' has {len(ids)} tokens. Please reduce the length of the messages or "
            "completion. (context_length_exceeded)",
            param=param,
        )


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors of length 1, from -1 to 1."""
    product = math.fsum(a * b for a, b in zip(first, second, strict=True))
    return max(-1.0, min(1.0, product))


def pooling_of(model: LoadedModel, wanted: str) -> Pooling:
    """Return how states become a vector: as asked for, else as the model's file says, else last."""
    return cast("Pooling", wanted) if wanted != "auto" else pooling_of_files(model.resources)
