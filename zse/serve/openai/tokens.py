"""POST /tokenize, POST /detokenize and GET /tokenizer_info, in the shapes of vLLM."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from zse.engine.admission import check_text
from zse.serve.asking import model_for
from zse.serve.conversation import plan_turn
from zse.serve.http.errors import BadRequestError, MissingParameterError
from zse.serve.http.fields import read_fields
from zse.serve.http.json_body import with_body
from zse.serve.http.requests import ignored_header, json_response, read_body
from zse.serve.openai.conversation import check_chat, conversation_of
from zse.serve.openai.field_table import CHAT_REFUSED, WITHOUT_EFFECT
from zse.serve.openai.protocol import ChatRequest, Message, Tool
from zse.serve.preparing import admit, in_turn, num_characters

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from zse.serve.http.fields import Refused
    from zse.serve.state import LoadedModel


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize: a ``prompt``, or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None


_AS_IN_CHATS = ("chat_template", "mm_processor_kwargs")
REFUSED: Refused = {"documents": (([],), "Put the documents into the messages.")} | {
    path: rule
    for path, rule in CHAT_REFUSED.items()
    if path in _AS_IN_CHATS or path.startswith("messages[]")
}
"""Known fields that are not done here, as in ``zse.serve.http.fields``."""

Body = TypeVar("Body", TokenizeRequest, DetokenizeRequest)


async def tokenize(request: Request) -> Response:
    mapping = await read_body(request)
    body, ignored = await with_body(request, _read, mapping, TokenizeRequest)
    model = await model_for(request, body.model)
    _check_tokenize(body, model)
    size = await with_body(request, num_characters, mapping)
    admit(request, num_choices=1, size=size)
    tokens = await in_turn(request, partial(_token_ids, body, model), size=size)
    texts = None
    if body.return_token_strs:
        texts = [model.tokenizer.token_text(token_id) for token_id in tokens]
    answer = {
        "count": len(tokens),
        "max_model_len": model.max_context,
        "tokens": tokens,
        "token_strs": texts,
    }
    return json_response(answer, ignored_header(ignored))


def _read(mapping: dict[str, Any], kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
    return read_fields(mapping, kind, refused=REFUSED, without_effect=WITHOUT_EFFECT)


def _check_tokenize(body: TokenizeRequest, model: LoadedModel) -> None:
    if body.prompt is not None and body.messages is not None:
        raise BadRequestError("'prompt' and 'messages' are both given.", param="prompt")
    if body.prompt is not None:
        check_text(body.prompt, max_context=model.max_context, param="prompt")
    elif body.messages is None:
        raise MissingParameterError("prompt")
    elif body.add_special_tokens:
        raise BadRequestError(
            "'add_special_tokens' is not for 'messages': the model's template writes them itself.",
            param="add_special_tokens",
        )


def _token_ids(body: TokenizeRequest, model: LoadedModel) -> list[int]:
    if body.prompt is not None:
        adds = body.add_special_tokens is not False
        return model.tokenizer.encode(body.prompt, add_special_tokens=adds)
    chat = ChatRequest(
        messages=body.messages or [],
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    check_chat(chat)
    return plan_turn(conversation_of(chat), model).prompt


async def detokenize(request: Request) -> Response:
    mapping = await read_body(request)
    body, ignored = await with_body(request, _read, mapping, DetokenizeRequest)
    model = await model_for(request, body.model)
    _check_ids(body.tokens, model)
    size = len(body.tokens)
    admit(request, num_choices=1, size=size)
    decode = partial(model.tokenizer.decode, body.tokens, skip_special_tokens=False)
    text = await in_turn(request, decode, size=size)
    return json_response({"prompt": text}, ignored_header(ignored))


def _check_ids(tokens: list[int], model: LoadedModel) -> None:
    limit = model.max_context
    if len(tokens) > limit:
        raise BadRequestError(
            f"'tokens' holds {len(tokens)} token ids, expected at most {limit}.", param="tokens"
        )
    if tokens and not (min(tokens) >= 0 and max(tokens) < model.vocab_size):
        raise BadRequestError(
            f"'tokens' holds a token id outside 0 to {model.vocab_size - 1}.", param="tokens"
        )


async def tokenizer_info(request: Request) -> Response:
    """Say what evaluations ask of a tokenizer, so that they need none of their own."""
    model = await model_for(request)
    tokenizer = model.tokenizer
    texts = {token.token_id: token.text for token in tokenizer.facts.added}
    ends = [texts[token_id] for token_id in tokenizer.eos_ids if token_id in texts]
    begins = [texts[token_id] for token_id in tokenizer.facts.prefix_ids if token_id in texts]
    answer = {
        "tokenizer_class": "zse",
        "vocab_size": model.vocab_size,
        "model_max_length": model.max_context,
        "bos_token": begins[0] if begins else None,
        "eos_token": ends[0] if ends else None,
        "pad_token": None,
        "eos_token_ids": list(tokenizer.eos_ids),
        "add_bos_token": bool(begins),
        "chat_template": model.template.source if model.template is not None else None,
    }
    return json_response(answer)
