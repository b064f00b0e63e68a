"""A conversation as every protocol hands it over: checked, in the words of chat templates.

Nothing here knows a protocol. Its handlers make a ``Conversation`` of what they were sent, plan the
turn, put the plan's prompt into a work order and run both as a ``Turn``.
"""

from __future__ import annotations

import secrets
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from zse.engine.admission import check_text
from zse.errors import TemplateError
from zse.records import record
from zse.text.user_text import Values, encode_pieces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.serve.state import LoadedModel
    from zse.text.dialect import AnswerReading, AnswerShape, Dialect
    from zse.text.grammar.spec import GrammarSpec
    from zse.text.template import ChatTemplate

PromptEnd = Literal["answer", "continued", "closed"]
"""How a prompt ends: where an answer begins, within the last message, which the answer goes on
with, or behind the last message."""
ChoiceMode = Literal["none", "auto", "required", "named"]


@record
class OfferedTool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of its arguments; None takes none."""
    is_strict: bool = False
    """The arguments must fit the schema."""

    def for_template(self) -> dict[str, Any]:
        """Return the definition that templates print."""
        parameters = self.parameters or {"type": "object", "properties": {}}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@record
class ToolChoice:
    """Whether the model must call."""

    mode: ChoiceMode = "auto"
    name: str = ""
    """The tool to call, where it is named."""


@record
class Conversation:
    """What is to be answered."""

    messages: Sequence[Mapping[str, Any]]
    """In the form that chat templates read: ``role`` (system, user, assistant, tool), ``content``
    (text), and where there are any ``name``, ``tool_call_id``, ``reasoning_content`` and
    ``tool_calls`` (``id``, ``type`` and ``function``: ``name``, ``arguments`` as an object)."""
    tools: tuple[OfferedTool, ...] = ()
    choice: ToolChoice = ToolChoice()
    parallel_calls: bool = True
    """Whether one answer may hold several calls."""
    form: GrammarSpec | None = None
    """What the text of an answer is held to; None for any text."""
    effort: str | None = None
    """How hard to think: one of ``zse.text.reasoning.controls.EFFORTS``; None leaves it to the
    template."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """More that the template reads, as the request has it."""
    end: PromptEnd = "answer"

    @property
    def offers_tools(self) -> bool:
        """Whether the model is shown tools, and its answer searched for calls."""
        return bool(self.tools) and self.choice.mode != "none"

    @property
    def constrains_calls(self) -> bool:
        """Whether the model must call, or its arguments must fit."""
        is_strict = any(tool.is_strict for tool in self.tools)
        return self.offers_tools and (is_strict or self.choice.mode in ("required", "named"))


@record
class TurnPlan:
    """How a conversation is answered."""

    prompt: list[int]
    """Token ids."""
    reading: AnswerReading | None = None
    """How answers are taken apart; None where they are only text."""
    parallel_calls: bool = True
    form: GrammarSpec | None = None
    """What the answers are held to, as the model writes them."""


def plan_turn(conversation: Conversation, model: LoadedModel) -> TurnPlan:
    """Render and encode the prompt: milliseconds of work for a long conversation.

    Raises:
        TemplateError: The model has no template, or it refuses the messages.
        ContextLengthError: The text is longer than any prompt may be.
    """
    pieces = _render(conversation, model)
    text = "".join(pieces)
    tools = conversation.tools if conversation.offers_tools else ()
    shape = model.dialect.shape(text, has_tools=bool(tools))
    return TurnPlan(
        prompt=encode_pieces(model.tokenizer, pieces),
        reading=shape.reading({tool.name: tool.parameters or {} for tool in tools}),
        parallel_calls=conversation.parallel_calls,
        form=_form(conversation, shape),
    )


def _form(conversation: Conversation, shape: AnswerShape) -> GrammarSpec | None:
    """Return what the whole answer is held to, with its calls and its reasoning."""
    if conversation.form is None and not conversation.constrains_calls:
        return None
    from zse.text.answer_grammar import CallDemand, answer_grammar
    from zse.text.tools.grammar import CallTool

    demand = None
    if conversation.offers_tools:
        choice = conversation.choice
        demand = CallDemand(
            tools=[
                CallTool(name=tool.name, parameters=tool.parameters or {}, is_strict=tool.is_strict)
                for tool in conversation.tools
                if tool.name == choice.name or choice.mode != "named"
            ],
            is_forced=choice.mode in ("required", "named"),
            is_single=choice.mode == "named" or not conversation.parallel_calls,
        )
    return answer_grammar(shape, conversation.form, demand)


def _render(conversation: Conversation, model: LoadedModel) -> list[str]:
    """Return the prompt, cut where what users wrote must not become a control token."""
    if model.template is None:
        raise TemplateError(
            f"The model '{model.name}' has no chat template that can be used here. "
            "Use /v1/completions.",
            param="messages",
        )
    try:
        pieces = _rendered(conversation, model.template, model.dialect)
    except TemplateError as error:
        error.param = error.param or "messages"
        raise
    check_text("".join(pieces), max_context=model.max_context, param="messages")
    return pieces


def _rendered(conversation: Conversation, template: ChatTemplate, dialect: Dialect) -> list[str]:
    tools = [tool.for_template() for tool in conversation.tools]
    thinking = dialect.thinking
    is_continued = conversation.end == "continued"
    settings = thinking.variables(conversation.effort or "")

    def render(values: Values) -> str:
        messages, end = values.messages, secrets.token_hex(16) if is_continued else ""
        if is_continued:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": f"{last['content']}{end} "}]
        text = template.render(
            messages,
            tools=values.tools,
            add_generation_prompt=conversation.end == "answer",
            **{**settings, **values.variables},
        )
        return _until(end, text) if is_continued else text

    values = Values(
        messages=[
            thinking.history(message)
            for message in dialect.call_history.messages(conversation.messages)
        ],
        tools=tools if conversation.offers_tools else None,
        variables=conversation.template_variables,
    )
    return dialect.control_texts.rendered(values, render)


def _until(mark: str, text: str) -> str:
    """Return a text up to a mark, which a template that strips messages leaves no space behind."""
    before, found, behind = text.rpartition(mark)
    if not found:
        raise TemplateError(
            "The model's chat template leaves out the last message, so that it cannot be continued."
        )
    return before if behind.startswith(" ") else before.rstrip()
