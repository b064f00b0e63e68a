"""From texts to vectors: encoded, read by the engine like any other prompt, brought to length 1."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from zse.engine import vectors
from zse.engine.admission import LONGEST_TOKEN_CHARACTERS, check_text
from zse.engine.reading import PromptQuery
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
    from collections.abc import Callable, Iterator, Sequence

    from starlette.requests import Request

    from zse.engine.reading import Pooling
    from zse.serve.state import LoadedModel
    from zse.serve.vectors.protocol import VectorFields

Item = TypeVar("Item")


@record
class Vectors:
    """What texts became."""

    vectors: Sequence[Sequence[float]]
    """One for each text, as the model has it: a vector, or the scores of a classifier."""
    num_tokens: int


@record
class Prompts:
    """What is to be read."""

    token_ids: Sequence[list[int]]
    second_from: Sequence[int | None] = ()
    """Where the second text of each begins; empty where none is a pair."""


async def encode_texts(
    request: Request,
    body: VectorFields,
    model: LoadedModel,
    items: Sequence[str | list[int]],
    *,
    params: Sequence[str],
) -> Prompts:
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
    texts = [(item,) if isinstance(item, str) else () for item in items]
    kept = let_in(request, body, model, texts, params=params)
    items = [text[0] if text else item for text, item in zip(kept, items, strict=True)]
    prompts: list[list[int]] = []
    for group in turns(items, len):
        job = partial(_encode, group, body, model)
        prompts += await in_turn(request, job, size=sum(map(len, group)))
    check_lengths(prompts, model, params=params)
    return Prompts(token_ids=prompts)


def let_in(
    request: Request,
    body: VectorFields,
    model: LoadedModel,
    prompts: Sequence[tuple[str, ...]],
    *,
    params: Sequence[str],
) -> list[tuple[str, ...]]:
    """Let a request of as many prompts in; return their texts, cut where they may and must be.

    A text that could not fit, however few tokens it makes, is cut or refused before any is encoded.

    Raises:
        ContextLengthError: A text is too long.
        OverloadedError: There is no room.
    """
    if body.cuts:
        most = model.max_context * LONGEST_TOKEN_CHARACTERS
        prompts = [tuple(text[:most] for text in texts) for texts in prompts]
    for texts, param in zip(prompts, params, strict=True):
        for text in texts:
            check_text(text, max_context=model.max_context + body.cuts, param=param)
    num_choices = min(len(prompts), state_of(request).max_running)
    size = sum(len(text) for texts in prompts for text in texts)
    admit(request, num_choices=num_choices, size=size)
    return list(prompts)


def turns(items: Sequence[Item], size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield what is encoded in one turn after the other: short ones together, a long one alone."""
    group: list[Item] = []
    size = 0
    for item in items:
        if group and size + size_of(item) > SHORT_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(item)
        size += size_of(item)
    if group:
        yield group


def _encode(
    items: Sequence[str | list[int]], body: VectorFields, model: LoadedModel
) -> list[list[int]]:
    """Return token ids with those around them that the tokenizer adds; texts write no others."""
    adds = body.add_special_tokens is not False
    facts = model.tokenizer.facts
    prefix, suffix = (facts.prefix_ids, facts.suffix_ids) if adds else ((), ())
    room = model.max_context - len(prefix) - len(suffix)
    encode = partial(model.tokenizer.encode, add_special_tokens=False, parse_special=False)
    prompts = []
    for item in items:
        if not isinstance(item, str):
            prompts.append(item[: model.max_context] if body.cuts else item)
            continue
        ids = encode(item)[:room] if body.cuts else encode(item)
        prompts.append([*prefix, *ids, *suffix])
    return prompts


async def read_vectors(
    request: Request,
    body: VectorFields,
    model: LoadedModel,
    prompts: Prompts,
    *,
    param: str,
    pooling: Pooling | None = None,
) -> Vectors:
    """Have prompts read; ``param`` names the field that they come from.

    Raises:
        ContextLengthError: A prompt is longer than the context.
        OverloadedError: The queue is full.
        ClientGoneError: The client left; the work was cancelled.
    """
    state = state_of(request)
    pooling = pooling or pooling_of(model, state.options.pooling)
    query = PromptQuery(pooling=pooling, generates=False)
    order = read_order(
        body,
        model,
        request.state,
        prompts.token_ids,
        query=query,
        param=param,
        second_from=prompts.second_from,
    )
    generation = Generation(state, model, order)
    await race(generation.whole(), request.receive, state.terminate)
    found = [generation.reports[place].vector for place in range(len(prompts.token_ids))]
    return Vectors(
        vectors=[vector for vector in found if vector is not None],
        num_tokens=generation.prompt_tokens,
    )


def check_lengths(
    prompts: Sequence[list[int]], model: LoadedModel, *, params: Sequence[str]
) -> None:
    """Refuse prompts that are empty, or longer than the context.

    Raises:
        BadRequestError: One has no tokens.
        ContextLengthError: One has too many.
    """
    for ids, param in zip(prompts, params, strict=True):
        if not ids:
            raise BadRequestError(f"'{param}' holds an empty text.", param=param)
        if len(ids) > model.max_context:
            raise ContextLengthError(
                f"This model's maximum context length is {model.max_context} tokens. However, a "
                f"text of '{param}' has {len(ids)} tokens. Please reduce the length of the "
                "messages or completion. (context_length_exceeded)",
                hint="Send 'truncate': true to have the end of long texts cut off.",
                param=param,
            )


def pooling_of(model: LoadedModel, wanted: str) -> Pooling:
    """Return how states become a vector: as asked for, else as the model's file says, else last."""
    if wanted != "auto" or model.spec is None:
        return cast("Pooling", "last" if wanted == "auto" else wanted)
    return vectors.pooling_of(model.resources, model.spec)
