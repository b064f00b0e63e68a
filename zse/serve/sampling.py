"""From a request's fields to the engine's parameters, with the limits that the protocol sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.engine import admission
from zse.engine.request import SET_BY_MODEL, SamplingParams
from zse.errors import ContextLengthError, InvalidParameterError
from zse.serve.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.serve.protocol import GenerationFields
    from zse.serve.state import LoadedModel

MAX_PRIORITY = 100
MAX_SALT_CHARACTERS = 128
_OPTIONAL = ("presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos", "n", "seed")


def build_params(
    request: GenerationFields, model: LoadedModel, *, max_tokens: int, logprobs: int | None
) -> SamplingParams:
    """Return engine parameters: the request's values, else the model's, else OpenAI's defaults.

    Args:
        request: The typed body.
        model: Supplies defaults from its generation_config.json and the vocabulary's size.
        max_tokens: Already resolved against the context.
        logprobs: Alternatives to report for each token; None reports nothing.

    Raises:
        InvalidParameterError: A value is out of range; ``param`` names it.
    """
    values: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": logprobs}
    for name in SET_BY_MODEL:
        value = getattr(request, name)
        value = model.sampling_defaults.get(name) if value is None else value
        if value is not None:
            values[name] = value
    for name in _OPTIONAL:
        if (value := getattr(request, name)) is not None:
            values[name] = value
    if values.get("top_p") == 0:
        # OpenAI accepts 0 and means "only the likeliest token".
        values.update(top_p=1.0, temperature=0.0)
    stop = request.stop
    values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop or ())
    values["stop_token_ids"] = tuple(request.stop_token_ids or ())
    values["logit_bias"] = _token_biases(request.logit_bias or {}, model.vocab_size)
    return SamplingParams(**values)


def _token_biases(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    result = {}
    for key, value in biases.items():
        # isascii: int() also takes digits of other scripts, underscores and spaces.
        token_id = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else -1
        if not 0 <= token_id < vocab_size:
            raise InvalidParameterError(
                f"Invalid key in 'logit_bias': {key[:40]!r} is no token id of this model "
                f"(0 to {vocab_size - 1}).",
                param="logit_bias",
            )
        result[token_id] = value
    return result


def resolve_max_tokens(
    requested: int | None,
    *,
    num_prompt_tokens: int,
    max_context: int,
    param: str,
    prompt_param: str,
) -> int:
    """Return how many tokens may be generated, or refuse what does not fit.

    Args:
        requested: What the client asked for; None means as many as the context has room for.
        num_prompt_tokens: Length of the prompt in tokens.
        max_context: Longest sequence in tokens.
        param: Name of the field that held ``requested``.
        prompt_param: Name of the field that held the prompt, at fault in an overflow.

    Raises:
        BadRequestError: ``requested`` is below 1.
        ContextLengthError: Prompt and answer do not fit; nothing is ever cut off in silence.
    """
    if requested is not None and requested < 1:
        raise BadRequestError(f"'{param}' is {requested}, expected 1 or more.", param=param)
    try:
        return admission.resolve_max_tokens(
            num_prompt_tokens, requested, max_context=max_context, capacity_tokens=max_context
        )
    except ContextLengthError as error:
        error.param = prompt_param
        raise


def check_extras(request: GenerationFields) -> tuple[int, str]:
    """Return ``(priority, cache_salt)`` after checking them."""
    priority = request.priority or 0
    if abs(priority) > MAX_PRIORITY:
        raise BadRequestError(
            f"'priority' is {priority}, expected -{MAX_PRIORITY} to {MAX_PRIORITY}.",
            param="priority",
        )
    salt = request.cache_salt or ""
    if len(salt) > MAX_SALT_CHARACTERS:
        raise BadRequestError(
            f"'cache_salt' is longer than {MAX_SALT_CHARACTERS} characters.", param="cache_salt"
        )
    return priority, salt
