"""/api/tools: the tools that this server runs, run by hand, and read out of what a model wrote."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from zse.errors import InvalidParameterError, UsageError
from zse.serve.access.caller import caller_of
from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.admin.shapes import AskedShape, Shape
from zse.serve.http.requests import state_of
from zse.serve.toolbox import Toolbox
from zse.text.pieces import CallOpening, Said, Thought

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/tools",
    tags=["tools"],
    dependencies=[Depends(Guard("inference"))],
)

MOST_TEXT = 262_144
MOST_CALLS = 16
"""That one request has run."""
_Text = Annotated[str, Field(max_length=MOST_TEXT)]


class ToolInfo(Shape):
    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of its arguments."""


class AllTools(Shape):
    tools: list[ToolInfo]
    """None where the server was started without ``--tools``."""


class OpenAIFunctions(Shape):
    tools: list[dict[str, Any]]
    """As the field ``tools`` of a chat completion takes them."""


class ToolCall(AskedShape):
    name: Annotated[str, Field(max_length=128)]
    arguments: dict[str, Any] | _Text = Field(default_factory=dict)
    """An object, or its JSON text."""


class ToolOutcome(Shape):
    name: str
    output: str
    """JSON, or the message of an error."""
    is_error: bool
    seconds: float


class WrittenText(AskedShape):
    text: _Text
    """What a model wrote, calls among it."""
    model: Annotated[str, Field(max_length=512)] | None = None
    """Whose way of writing calls is meant; the default model's without one."""


class FoundCall(Shape):
    name: str
    arguments: str
    """JSON text."""


class ReadText(Shape):
    text: str
    """Without the calls."""
    reasoning: str
    calls: list[FoundCall]


class ProcessedText(ReadText):
    results: list[ToolOutcome]
    """Of each call, in their order."""


@router.get("/", summary="The tools that this server runs.")
@router.get("", include_in_schema=False)
def all_tools(request: Request) -> AllTools:
    definitions = _box(request).registry.definitions()
    return AllTools(tools=[ToolInfo(**one["function"]) for one in definitions])


@router.get("/openai/functions", summary="The same, as OpenAI's field `tools` has them.")
def openai_functions(request: Request) -> OpenAIFunctions:
    return OpenAIFunctions(tools=_box(request).registry.definitions())


@router.post("/execute", summary="Run a tool.")
async def execute_tool(request: Request, body: ToolCall) -> ToolOutcome:
    return await _run(request, body.name, body.arguments)


@router.post("/parse", summary="Find the calls in what a model wrote.")
def parse_text(request: Request, body: WrittenText) -> ReadText:
    return _read(request, body)


@router.post("/process", summary="Find the calls in what a model wrote, and run them.")
async def process_text(request: Request, body: WrittenText) -> ProcessedText:
    read = await asyncio.to_thread(_read, request, body)
    if len(read.calls) > MOST_CALLS:
        raise InvalidParameterError(
            f"The text has {len(read.calls)} calls, at most {MOST_CALLS} are run.", param="text"
        )
    results = [await _run(request, call.name, call.arguments) for call in read.calls]
    return ProcessedText(**read.model_dump(), results=results)


def _box(request: Request) -> Toolbox:
    return state_of(request).one_of(Toolbox)


async def _run(request: Request, name: str, arguments: object) -> ToolOutcome:
    request.state.account.tools.append(name[:64])
    try:
        result = await _box(request).run(
            name,
            arguments,
            request_id=request.state.request_id,
            caller=caller_of(request.scope),
        )
    except UsageError as error:
        raise InvalidParameterError(f"{error.message}. {error.hint}", param="name") from None
    return ToolOutcome(
        name=name,
        output=result.output,
        is_error=result.is_error,
        seconds=round(result.seconds, 4),
    )


def _read(request: Request, body: WrittenText) -> ReadText:
    """Take a text apart as an answer is; calls of tools that are not here stay text."""
    model = state_of(request).require_model(body.model)
    functions = [one["function"] for one in _box(request).registry.definitions()]
    tools = {one["name"]: one["parameters"] for one in functions}
    reading = model.dialect.shape("", has_tools=True).reading(tools)
    if reading is None:
        return ReadText(text=body.text, reasoning="", calls=[])
    reader = reading.make_reader()
    said, thought, calls = [], [], []
    for piece in [*reader.push(body.text), *reader.finish()]:
        if isinstance(piece, Said):
            said.append(piece.text)
        elif isinstance(piece, Thought):
            thought.append(piece.text)
        elif isinstance(piece, CallOpening):
            calls.append(FoundCall(name=piece.name, arguments=""))
        else:
            calls[-1].arguments += piece.text
    return ReadText(text="".join(said), reasoning="".join(thought), calls=calls)
