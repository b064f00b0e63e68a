"""From a checked body to a work order: the engine's parameters, within the protocol's limits."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

from zse.engine import admission
from zse.engine.request import SamplingParams
from zse.errors import ContextLengthError, InvalidParameterError
from zse.serve.access.caller import MAX_PRIORITY
from zse.serve.generation import WorkOrder
from zse.serve.http.errors import BadRequestError
from zse.serve.openai.protocol import FORM_FIELDS, GenerationFields
from zse.serve.openai.token_choice import form_of_tokens, single_tokens, token_biases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import State

    from zse.engine.reading import PromptQuery
    from zse.serve.state import LoadedModel
    from zse.text.grammar.spec import GrammarSpec

MAX_SALT_CHARACTERS = 128
MAX_TOLD = 1 << 18
"""Log-probabilities of prompts, alternatives counted, that one request may ask for."""


class Asked(Protocol):
    """What every body may ask for besides an answer."""

    priority: int | None
    cache_salt: str | None


_SAME = {each.name for each in fields(SamplingParams)} & set(GenerationFields.__struct_fields__)
"""What a body calls as the engine does."""


def form_asked_by(body: GenerationFields) -> GrammarSpec | None:
    """Return the form that a body asks its answers to have; None for any text.

    Raises:
        GrammarError: The form is damaged or too large; ``param`` names the field.
        BadRequestError: The body asks for two, or a field has the wrong shape.
    """
    if all(getattr(body, name) is None for name in FORM_FIELDS):
        return None
    from zse.serve.openai.form import form_of  # with what only answers in a form need

    return form_of(body)


def work_order(
    body: GenerationFields,
    model: LoadedModel,
    call: State,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    form: GrammarSpec | None = None,
    query: PromptQuery | None = None,
    param: str = "max_tokens",
    prompt_param: str,
) -> WorkOrder:
    """Return what to generate: a body's values, else the model's, else OpenAI's defaults.

    Args:
        body: Its types and ranges are checked.
        model: What is to answer.
        call: Which call it is, whose, and when it came.
        prompts: Token ids of each prompt.
        max_tokens: What the client asked for; None means as many as the context has room for.
        logprobs: Alternatives to report for each token; None reports nothing.
        form: What the answers are held to; None for any text.
        query: What is to be told of each prompt.
        param: Name of the field that held ``max_tokens``.
        prompt_param: Name of the field that held the prompts, at fault in an overflow.

    Raises:
        InvalidParameterError: A value is out of range; ``param`` names it.
        ContextLengthError: Prompt and answer do not fit; nothing is ever cut off in silence.
        GrammarError: The form cannot be kept.
    """
    if max_tokens is not None and max_tokens < 1:
        raise BadRequestError(f"'{param}' is {max_tokens}, expected 1 or more.", param=param)
    if query is not None and not query.generates:
        max_tokens = 0
    most = _resolved(max_tokens, model, prompts, prompt_param)
    _check_told(query, prompts, prompt_param)
    if body.allowed_token_ids is not None:
        form = form_of_tokens(body.allowed_token_ids, model.vocab_size, form)
    params = _params(body, model, max_tokens=most or 1, logprobs=logprobs)
    for prompt in prompts:
        model.engine.check(prompt, params, query)
    num_answers = params.n * len(prompts)
    grammar = None if form is None else model.engine.grammars.compile(form, num_answers)
    return _order(body, call, prompts=tuple(prompts), params=params, grammar=grammar, query=query)


def read_order(
    body: Asked,
    model: LoadedModel,
    call: State,
    prompts: Sequence[Sequence[int]],
    *,
    query: PromptQuery,
    param: str,
    second_from: Sequence[int | None] = (),
) -> WorkOrder:
    """Return what is to be told of prompts, where nothing is generated.

    Args:
        body: Its types and ranges are checked.
        model: What is to read them.
        call: Which call it is, whose, and when it came.
        prompts: Token ids of each prompt.
        query: What is to be told of each.
        second_from: Where the second text of each begins; empty where none is a pair.
        param: Name of the field that held the prompts, at fault in an overflow.

    Raises:
        InvalidParameterError: A token id is out of range.
        ContextLengthError: A prompt does not fit.
    """
    params = SamplingParams(temperature=0.0, max_tokens=1)
    try:
        for prompt in prompts:
            model.engine.check(prompt, params, query)
    except (ContextLengthError, InvalidParameterError) as error:
        error.param = param
        raise
    work = {"params": params, "query": query, "second_from": tuple(second_from)}
    return _order(body, call, prompts=tuple(prompts), **work)


def _order(body: Asked, call: State, **work: Any) -> WorkOrder:
    """Return an order with what the call and every body say of it."""
    _check_extras(body)
    return WorkOrder(
        request_id=call.request_id,
        arrival=call.arrival,
        place=call.place,
        account=call.account,
        asked_priority=body.priority,
        asked_salt=body.cache_salt,
        deadline=call.deadline,
        room=call.room,
        **work,
    )


def _resolved(
    max_tokens: int | None,
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    prompt_param: str,
) -> int:
    size = model.max_context
    try:
        return admission.resolve_max_tokens(
            max(map(len, prompts)), max_tokens, max_context=size, capacity_tokens=size
        )
    except ContextLengthError as error:
        error.param = prompt_param
        raise


def _params(body: GenerationFields, model: LoadedModel, **resolved: int | None) -> SamplingParams:
    values: dict[str, Any] = dict(model.sampling_defaults)
    values |= {name: given for name in _SAME if (given := getattr(body, name)) is not None}
    if values.get("top_p") == 0:
        # OpenAI accepts 0 and means "only the likeliest token".
        values.update(top_p=1.0, temperature=0.0)
    values["logit_bias"] = token_biases(body.logit_bias or {}, model.vocab_size)
    banned = single_tokens(body.bad_words or (), model.tokenizer)
    if (allowed := body.allowed_token_ids) is not None:
        # An answer of some tokens goes on until its limit, unless its end is one of them.
        banned += tuple(set(model.tokenizer.eos_ids).difference(allowed))
    values["banned_token_ids"] = banned
    return SamplingParams(**{**values, **resolved})


def _check_told(
    query: PromptQuery | None, prompts: Sequence[Sequence[int]], prompt_param: str
) -> None:
    """Refuse to tell more of prompts than an answer may hold: it is encoded in one go."""
    if query is None or query.logprobs is None:
        return
    count = sum(map(len, prompts)) * (1 + query.logprobs)
    if count > MAX_TOLD:
        raise BadRequestError(
            f"{count} log-probabilities of the prompts are asked for, expected at most {MAX_TOLD}: "
            "send fewer prompts at once, or ask for fewer alternatives.",
            param=prompt_param,
        )


def _check_extras(body: Asked) -> None:
    if abs(body.priority or 0) > MAX_PRIORITY:
        raise BadRequestError(
            f"'priority' is {body.priority}, expected -{MAX_PRIORITY} to {MAX_PRIORITY}.",
            param="priority",
        )
    if len(body.cache_salt or "") > MAX_SALT_CHARACTERS:
        raise BadRequestError(
            f"'cache_salt' is longer than {MAX_SALT_CHARACTERS} characters.", param="cache_salt"
        )
