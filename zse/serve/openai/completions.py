"""POST /v1/completions: prompts as text or token ids, several at once, echo, logprobs, streams."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from zse.serve.asking import writer_for
from zse.serve.generation import Generation, WholeChoice
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import answer, answer_head, read_body, state_of
from zse.serve.http.streaming import DONE
from zse.serve.openai.completion_plan import plan_completion
from zse.serve.openai.logprobs import end_of, joined
from zse.serve.openai.protocol import CompletionRequest, read_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.engine.output import Delta
    from zse.engine.reading import PromptReport
    from zse.serve.http.streaming import ChunkWriter, FrameSink
    from zse.serve.openai.completion_plan import Plan


async def create_completion(request: Request) -> ASGIApp:
    return await answer_completion(request, await read_body(request))


async def answer_completion(request: Request, mapping: dict[str, Any]) -> ASGIApp:
    state = state_of(request)
    body, ignored = await with_body(request, read_request, mapping, CompletionRequest)
    model = await writer_for(request, body.model)
    plan = await plan_completion(request, body, model)
    generation = Generation(state, model, plan.order) if plan.runs else None
    return await answer(
        request,
        body,
        answer_head("text_completion", "cmpl", model),
        ignored=ignored,
        frames=partial(_frames, plan, generation),
        collect=partial(_collect, plan, generation),
        usage=partial(_usage, plan, generation),
    )


def _usage(plan: Plan, generation: Generation | None) -> dict[str, Any]:
    if generation is not None:
        return generation.usage()
    count = sum(map(len, plan.order.prompts))
    return {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}


async def _collect(plan: Plan, generation: Generation | None) -> dict[str, Any]:
    if generation is None:
        choices = [WholeChoice() for _ in range(plan.num_choices)]
    else:
        choices = await generation.whole()
    reports = generation.reports if generation is not None else {}
    if not reports:
        answered = _answered(plan, choices, reports)
    else:  # a long prompt has many log-probabilities, and other streams would feel them
        answered = await asyncio.to_thread(_answered, plan, choices, reports)
    return {"choices": answered, "usage": _usage(plan, generation)}


def _answered(
    plan: Plan, choices: Sequence[WholeChoice], reports: Mapping[int, PromptReport]
) -> list[dict[str, Any]]:
    whole = _whole_choices(plan, choices, reports)
    return [{"index": index, **choice} for index, choice in enumerate(whole)]


def _whole_choices(
    plan: Plan, choices: Sequence[WholeChoice], reports: Mapping[int, PromptReport]
) -> Iterator[dict[str, Any]]:
    count = len(choices) // len(plan.echoes)
    for place, echo in enumerate(plan.echoes):
        group = choices[place * count : (place + 1) * count]
        report = reports.get(place)
        echoed = plan.echoed(place, report)
        for choice in plan.best(group):
            logprobs = plan.logprobs(choice.logprobs, end_of(echoed))
            yield {
                "text": echo + choice.text,
                "logprobs": joined(echoed, logprobs) if logprobs is not None else None,
                "finish_reason": choice.finish_reason,
                **plan.told(report),
            }


async def _frames(
    plan: Plan, generation: Generation | None, writer: ChunkWriter, sink: FrameSink | None
) -> AsyncGenerator[bytes, None]:
    if generation is None:
        for index in range(plan.num_choices):
            yield writer.completion_text(index, plan.echo_of(index))
            yield writer.choice(_piece(index, finish_reason="length"))
    else:
        streamed = _Streamed(plan, writer)
        generation.shorten(sink, streamed.frames, streamed.around)
        async with aclosing(generation.deltas()) as deltas:
            async for index, delta in deltas:
                for frame in streamed.frames(index, delta):
                    yield frame
    if writer.include_usage:
        yield writer.usage(_usage(plan, generation))
    yield DONE


class _Streamed:
    """The choices of a stream."""

    def __init__(self, plan: Plan, writer: ChunkWriter) -> None:
        self._plan = plan
        self._writer = writer
        self._is_new = set(range(plan.num_choices))
        self._offsets = dict.fromkeys(range(plan.num_choices), 0)
        self._echoed: dict[int, dict[str, Any] | None] = {}

    def frames(self, index: int, delta: Delta) -> Iterator[bytes]:
        if index in self._is_new:
            self._is_new.discard(index)
            yield from self._opening(index, delta)
        if delta.logprobs:
            logprobs = self._plan.logprobs(delta.logprobs, self._offsets[index])
            self._offsets[index] += sum(len(entry.token) for entry in delta.logprobs)
            yield self._writer.choice(_piece(index, text=delta.text, logprobs=logprobs))
        elif delta.text:
            yield self._writer.completion_text(index, delta.text)
        if delta.finish_reason is not None:
            yield self._writer.choice(_piece(index, finish_reason=delta.finish_reason))

    def around(self, index: int) -> tuple[bytes, bytes] | None:
        """Return what stands around the text of a choice that has begun."""
        return None if index in self._is_new else self._writer.around_completion(index)

    def _opening(self, index: int, delta: Delta) -> Iterator[bytes]:
        """Yield what a choice begins with: its prompt, if that is echoed.

        The first choice of a prompt comes first and says what is known of it for all.
        """
        place = index // self._plan.num_choices_each
        if delta.report is not None:
            self._echoed[place] = self._plan.echoed(place, delta.report)
        echo, echoed = self._plan.echo_of(index), self._echoed.get(place)
        if echoed is not None:
            self._offsets[index] = end_of(echoed)
            yield self._writer.choice(_piece(index, text=echo, logprobs=echoed))
        elif echo:
            yield self._writer.completion_text(index, echo)


def _piece(
    index: int,
    *,
    text: str = "",
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason}
