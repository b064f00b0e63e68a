"""The tokens that every conversation with one system prompt, and the same tools, begins with.

A template may put anything behind the system prompt, and tokens may join across its end. So a few
conversations are rendered and encoded as requests are, and what their prompts share counts.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, cast

from zse.errors import UsageError
from zse.serve.conversation import Conversation, plan_turn
from zse.serve.load import dialect_of, model_name_of, template_of
from zse.serve.state import LoadedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.loading import LoadedModel as EngineModel
    from zse.serve.conversation import OfferedTool
    from zse.server_options import ServeOptions

_FIRST_WORDS = ("Hello", "9 + 1", "\u00c9t\u00e9", "(x)", "a")
"""What users may begin with: as different as tokens can be."""


def system_prefix(
    model: EngineModel, system: str, tools: Sequence[OfferedTool], options: ServeOptions
) -> list[int]:
    """Return the token ids that all chats with a system prompt and tools begin with.

    Raises:
        TemplateError: The model has no chat template, or it refuses a system prompt.
        UsageError: Its conversations have no beginning in common.
    """
    served = _as_served(model, options)
    prompts = []
    for words in _FIRST_WORDS:
        messages = [{"role": "user", "content": words}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        plan = plan_turn(Conversation(messages=messages, tools=tuple(tools)), served)
        prompts.append(plan.prompt)
    common = [
        column[0]
        for column in itertools.takewhile(
            lambda column: len(set(column)) == 1, zip(*prompts, strict=False)
        )
    ]
    if not common:
        raise UsageError("conversations with this prompt have no beginning in common")
    return common


def text_prefix(model: EngineModel, text: str) -> list[int]:
    """Return the token ids of a text as /v1/completions reads it, without its last token.

    That one may be another where the text goes on.
    """
    return model.tokenizer.encode(text, add_special_tokens=True)[:-1]


def _as_served(model: EngineModel, options: ServeOptions) -> LoadedModel:
    """Return a model as the server has it, but for the engine, which renders nothing."""
    template = template_of(model.reader)
    unused: Any = None
    return LoadedModel(
        name=model_name_of(str(model.reader.path)),
        engine=cast("Any", unused),
        tokenizer=model.tokenizer,
        template=template,
        max_context=model.core.capacity_tokens,
        vocab_size=model.core.runner.vocab_size,
        fingerprint="",
        created=int(time.time()),
        dialect=dialect_of(template, model.tokenizer, options),
    )
