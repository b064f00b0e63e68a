"""POST /v1/completions: prompts as text or token ids, several at once, echo, logprobs, streams."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from zse.engine.admission import check_text
from zse.engine.request import MAX_TOP_LOGPROBS
from zse.records import record
from zse.serve.generation import Generation, WholeChoice
from zse.serve.http.errors import BadRequestError, MissingParameterError, UnsupportedParameterError
from zse.serve.http.fields import check_range
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import answer, answer_head, read_body, state_of
from zse.serve.http.streaming import DONE
from zse.serve.openai.logprobs import completion_logprobs
from zse.serve.openai.protocol import MAX_PROMPTS, CompletionRequest, read_request
from zse.serve.openai.sampling import form_asked_by, work_order

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.datastructures import State
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from zse.engine.output import TokenLogprob
    from zse.serve.generation import WorkOrder
    from zse.serve.http.streaming import ChunkWriter
    from zse.serve.state import LoadedModel

DEFAULT_MAX_TOKENS = 16


@record
class Plan:
    """A checked request."""

    order: WorkOrder | None
    """None when nothing is to be generated (max_tokens 0)."""
    num_prompt_tokens: int
    echoes: tuple[str, ...]
    """Text to begin each prompt's choices with; empty texts without ``echo``."""
    num_choices_each: int
    num_alternatives: int | None
    """To report with each token; None reports no log-probabilities at all."""

    @property
    def num_choices(self) -> int:
        return len(self.echoes) * self.num_choices_each

    def echo_of(self, index: int) -> str:
        """Return what the text of a choice begins with."""
        return self.echoes[index // self.num_choices_each]

    def logprobs(self, entries: Sequence[TokenLogprob], text_offset: int) -> dict[str, Any] | None:
        """Return what is said of tokens that begin so many characters into a choice's text."""
        if self.num_alternatives is None:
            return None
        has_top = self.num_alternatives > 0
        return completion_logprobs(entries, text_offset=text_offset, with_top=has_top)


async def create_completion(request: Request) -> ASGIApp:
    return await answer_completion(request, await read_body(request))


async def answer_completion(request: Request, mapping: dict[str, Any]) -> ASGIApp:
    state = state_of(request)
    body, ignored = await with_body(request, read_request, mapping, CompletionRequest)
    model = state.require_model(body.model)
    plan = await asyncio.to_thread(_plan, body, model, request.state)
    generation = None
    if plan.order is None:
        state.refuse_oversized(plan.num_choices)
    else:
        generation = Generation(state, model, plan.order)
    return await answer(
        request,
        body,
        answer_head("text_completion", "cmpl", model),
        ignored=ignored,
        frames=partial(_frames, plan, generation),
        collect=partial(_collect, plan, generation),
    )


def _plan(body: CompletionRequest, model: LoadedModel, call: State) -> Plan:
    prompts = _prompts(body, model)
    check_range("logprobs", body.logprobs, 0, MAX_TOP_LOGPROBS)
    if body.echo and body.logprobs is not None:
        raise UnsupportedParameterError(
            "logprobs", "Log-probabilities of the prompt (echo with logprobs) are not computed."
        )
    requested = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    order = work_order(
        body,
        model,
        call,
        prompts,
        max_tokens=requested or 1,  # what generates nothing is held to the same limits
        logprobs=body.logprobs,
        form=form_asked_by(body),
        prompt_param="prompt",
    )
    return Plan(
        order=order if requested else None,
        num_prompt_tokens=sum(len(prompt) for prompt in prompts),
        echoes=tuple(model.tokenizer.decode(prompt) if body.echo else "" for prompt in prompts),
        num_choices_each=order.params.n,
        num_alternatives=body.logprobs,
    )


def _prompts(body: CompletionRequest, model: LoadedModel) -> list[list[int]]:
    """Return token ids for each prompt: a text, a list of ids, or a list of either."""
    prompt = body.prompt
    if prompt is None:
        raise MissingParameterError("prompt")
    is_one = isinstance(prompt, str) or (prompt and all(isinstance(item, int) for item in prompt))
    items: list[Any] = [prompt] if is_one else list(prompt)
    if not 0 < len(items) <= MAX_PROMPTS:
        raise BadRequestError(
            f"'prompt' holds {len(items)} prompts, expected 1 to {MAX_PROMPTS}.", param="prompt"
        )
    return [_token_ids(item, model) for item in items]


def _token_ids(item: str | list[int] | int, model: LoadedModel) -> list[int]:
    if isinstance(item, str):
        check_text(item, max_context=model.max_context, param="prompt")
        return model.tokenizer.encode(item)
    if isinstance(item, list):
        return item
    raise BadRequestError("'prompt' mixes token ids with texts or lists.", param="prompt")


def _empty_usage(plan: Plan) -> dict[str, Any]:
    return {
        "prompt_tokens": plan.num_prompt_tokens,
        "completion_tokens": 0,
        "total_tokens": plan.num_prompt_tokens,
    }


async def _collect(plan: Plan, generation: Generation | None) -> dict[str, Any]:
    if generation is None:
        choices = [WholeChoice() for _ in range(plan.num_choices)]
    else:
        choices = await generation.whole()
    return {
        "choices": [
            {
                "index": index,
                "text": plan.echo_of(index) + choice.text,
                "logprobs": plan.logprobs(choice.logprobs, 0),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": generation.usage() if generation else _empty_usage(plan),
    }


async def _frames(
    plan: Plan, generation: Generation | None, writer: ChunkWriter
) -> AsyncGenerator[bytes, None]:
    offsets = dict.fromkeys(range(plan.num_choices), 0)
    if generation is None:
        for index in range(plan.num_choices):
            yield writer.completion_text(index, plan.echo_of(index))
            yield writer.choice(_piece(index, finish_reason="length"))
    else:
        is_new = set(range(plan.num_choices))
        async with aclosing(generation.deltas()) as deltas:
            async for index, delta in deltas:
                if index in is_new:
                    is_new.discard(index)
                    if echo := plan.echo_of(index):
                        yield writer.completion_text(index, echo)
                if delta.logprobs:
                    logprobs = plan.logprobs(delta.logprobs, offsets[index])
                    offsets[index] += sum(len(entry.token) for entry in delta.logprobs)
                    yield writer.choice(_piece(index, text=delta.text, logprobs=logprobs))
                elif delta.text:
                    yield writer.completion_text(index, delta.text)
                if delta.finish_reason is not None:
                    yield writer.choice(_piece(index, finish_reason=delta.finish_reason))
    if writer.include_usage:
        yield writer.usage(generation.usage() if generation else _empty_usage(plan))
    yield DONE


def _piece(
    index: int,
    *,
    text: str = "",
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason}
