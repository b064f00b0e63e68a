"""From a text completion's body to what is generated and told: prompts, gaps, echoes, choices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from zse.engine.admission import check_text
from zse.engine.reading import PromptQuery
from zse.engine.request import MAX_CHOICES, MAX_TOP_LOGPROBS
from zse.records import record
from zse.serve.http.errors import BadRequestError, MissingParameterError, UnsupportedParameterError
from zse.serve.http.fields import check_range
from zse.serve.openai.logprobs import completion_logprobs, echoed_logprobs, prompt_logprobs
from zse.serve.openai.protocol import MAX_PROMPTS, CompletionRequest
from zse.serve.openai.sampling import form_asked_by, work_order
from zse.serve.preparing import admit, in_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import State
    from starlette.requests import Request

    from zse.engine.output import TokenLogprob
    from zse.engine.reading import PromptReport
    from zse.serve.generation import WholeChoice, WorkOrder
    from zse.serve.state import LoadedModel

DEFAULT_MAX_TOKENS = 16


@record
class Plan:
    """A checked request."""

    order: WorkOrder
    model: LoadedModel
    runs: bool
    """False when there is nothing to generate and nothing to tell (max_tokens 0)."""
    echoes: tuple[str, ...]
    """Text to begin each prompt's choices with; empty texts without ``echo``."""
    num_choices_each: int
    """Choices of each prompt that are answered: the best of those that are generated."""
    has_logprobs: bool
    tells_echo: bool
    """Whether log-probabilities begin with those of the prompt."""
    tells_prompt: bool
    """Whether there are ``prompt_logprobs``."""

    @property
    def num_generated_each(self) -> int:
        return self.order.params.n

    @property
    def num_choices(self) -> int:
        return len(self.echoes) * self.num_choices_each

    def echo_of(self, index: int) -> str:
        """Return what the text of a choice begins with."""
        return self.echoes[index // self.num_choices_each]

    def logprobs(self, entries: Sequence[TokenLogprob], text_offset: int) -> dict[str, Any] | None:
        """Return what is said of tokens that begin so many characters into a choice's text."""
        if not self.has_logprobs:
            return None
        return completion_logprobs(entries, text_offset=text_offset)

    def echoed(self, place: int, report: PromptReport | None) -> dict[str, Any] | None:
        """Return what is said of the tokens of a prompt, which begin its choices' texts."""
        if not self.tells_echo or report is None:
            return None
        return echoed_logprobs(self.model.tokenizer, self.order.prompts[place], report.tokens)

    def told(self, report: PromptReport | None) -> dict[str, Any]:
        """Return the fields of a choice that say more of its prompt."""
        if not self.tells_prompt or report is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self.model.tokenizer, report.tokens)}

    def best(self, choices: Sequence[WholeChoice]) -> list[WholeChoice]:
        """Return the choices of one prompt that are answered, the likeliest tokens first."""
        if self.num_choices_each == self.num_generated_each:
            return list(choices)
        return sorted(choices, key=_mean_logprob, reverse=True)[: self.num_choices_each]


async def plan_completion(request: Request, body: CompletionRequest, model: LoadedModel) -> Plan:
    """Let a request in and encode its prompts, one in a turn; the last turn makes the plan as well.

    Raises:
        BadRequestError: Two fields contradict each other, or one is out of its range.
        UnsupportedParameterError: The model fills no gaps.
        ContextLengthError: A prompt and its answer do not fit.
        OverloadedError: There is no room.
    """
    _check_fields(body)
    items = _prompt_items(body, model)
    sizes = [len(item) for item in items]
    num_choices = len(items) * (body.best_of or body.n or 1)
    admit(request, num_choices=num_choices, size=sum(sizes) + len(body.suffix or ""))
    prompts: list[list[int]] = []
    for item, size in zip(items[:-1], sizes, strict=False):
        if isinstance(item, list):
            prompts.append(item)
        else:
            job = partial(_encode, item, body, model)
            prompts.append(await in_turn(request, job, size=size))
    plan = partial(_plan, body, model, request.state, prompts, items[-1])
    return await in_turn(request, plan, size=sizes[-1] + len(body.suffix or ""))


def _plan(
    body: CompletionRequest,
    model: LoadedModel,
    call: State,
    prompts: list[list[int]],
    last: str | list[int],
) -> Plan:
    end_token_ids: tuple[int, ...] = ()
    if body.suffix:
        assert isinstance(body.prompt, str)
        last, end_token_ids = gap_prompt(body.prompt, body.suffix, model)
    prompts.append(_encode(last, body, model) if isinstance(last, str) else last)
    if end_token_ids:
        body.stop_token_ids = [*(body.stop_token_ids or ()), *end_token_ids]
    requested = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    tells_echo = bool(body.echo) and body.logprobs is not None
    query = _query(body, tells_echo=tells_echo, generates=requested > 0)
    num_answered, num_generated = body.n or 1, body.best_of or body.n or 1
    logprobs = body.logprobs if num_answered == num_generated else body.logprobs or 0
    order = work_order(
        body,
        model,
        call,
        prompts,
        max_tokens=requested or 1,  # what generates nothing is held to the same limits
        logprobs=logprobs,
        form=form_asked_by(body),
        query=query,
        prompt_param="prompt",
    )
    return Plan(
        order=replace(order, params=replace(order.params, n=num_generated)),
        model=model,
        runs=requested > 0 or query is not None,
        echoes=tuple(model.tokenizer.decode(prompt) if body.echo else "" for prompt in prompts),
        num_choices_each=num_answered,
        has_logprobs=body.logprobs is not None,
        tells_echo=tells_echo,
        tells_prompt=body.prompt_logprobs is not None,
    )


def _check_fields(body: CompletionRequest) -> None:
    check_range("logprobs", body.logprobs, 0, MAX_TOP_LOGPROBS)
    check_range("best_of", body.best_of, body.n or 1, MAX_CHOICES)
    if body.stream and (body.best_of or 1) > (body.n or 1):
        raise BadRequestError(
            "'best_of' above 'n' is not allowed when 'stream' is true: which answers are the best "
            "is known at their end.",
            param="best_of",
        )
    if body.stream and body.prompt_logprobs is not None:
        raise BadRequestError(
            "'prompt_logprobs' is not allowed when 'stream' is true.", param="prompt_logprobs"
        )
    if body.suffix and body.echo:
        raise BadRequestError("'echo' is not allowed with 'suffix'.", param="echo")


def _query(body: CompletionRequest, *, tells_echo: bool, generates: bool) -> PromptQuery | None:
    asked = [value for value in (body.prompt_logprobs,) if value is not None]
    if tells_echo:
        asked.append(body.logprobs or 0)
    return PromptQuery(logprobs=max(asked), generates=generates) if asked else None


def _prompt_items(body: CompletionRequest, model: LoadedModel) -> list[str | list[int]]:
    """Return each prompt, a text or token ids, of what is one, a list of ids or a list of either.

    None is so long that it cannot fit, whatever its tokens.
    """
    prompt = body.prompt
    if prompt is None:
        raise MissingParameterError("prompt")
    if body.suffix and not isinstance(prompt, str):
        raise BadRequestError("'suffix' needs one 'prompt' that is a text.", param="suffix")
    is_one = isinstance(prompt, str) or (prompt and all(isinstance(item, int) for item in prompt))
    items: list[Any] = [prompt] if is_one else list(prompt)
    if not 0 < len(items) <= MAX_PROMPTS:
        raise BadRequestError(
            f"'prompt' holds {len(items)} prompts, expected 1 to {MAX_PROMPTS}.", param="prompt"
        )
    for item in items:
        if isinstance(item, str):
            check_text(item, max_context=model.max_context, param="prompt")
        elif not isinstance(item, list):
            raise BadRequestError("'prompt' mixes token ids with texts or lists.", param="prompt")
    if body.suffix:
        check_text(body.suffix, max_context=model.max_context, param="suffix")
    return items


def _encode(text: str, body: CompletionRequest, model: LoadedModel) -> list[int]:
    adds_special = body.add_special_tokens is not False
    return model.tokenizer.encode(text, add_special_tokens=adds_special)


def gap_prompt(prompt: str, suffix: str, model: LoadedModel) -> tuple[list[int], tuple[int, ...]]:
    """Return the prompt for what stands between two texts, and the tokens that end the answer.

    Raises:
        UnsupportedParameterError: The model fills no gaps.
    """
    from zse.text.fill import fill_form_of, gap_between

    form = fill_form_of(model.tokenizer)
    if form is None:
        raise UnsupportedParameterError(
            "suffix", f"The model '{model.name}' has no tokens for filling a gap."
        )
    gap = gap_between(model.tokenizer, form, prompt, suffix)
    return gap.token_ids, gap.end_token_ids


def _mean_logprob(choice: WholeChoice) -> float:
    values = [entry.logprob for entry in choice.logprobs]
    return sum(values) / len(values) if values else float("-inf")
