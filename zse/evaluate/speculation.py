"""What drafts are worth: the same questions answered with them and without, by turns."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, NamedTuple

from zse.engine.core import EngineCore
from zse.engine.loading import make_core
from zse.engine.request import Request, SamplingParams
from zse.errors import TemplateError, UsageError
from zse.evaluate.texts import SAMPLE
from zse.option import with_values
from zse.records import record
from zse.text.template import load_chat_template

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.engine.loading import LoadedModel
    from zse.options import LoadOptions

_EDIT = (
    "Rename the class `_Node` to `_CachedBlock` in this file, change nothing else, and write the "
    "whole file again.\n\n```python\n{code}\n```"
)
_RETRIEVAL = (
    "{prose}\n\nCopy from the text above, word for word and one after the other, the sentences of "
    "its first two paragraphs."
)
_AGENT = """You change code with two tools, by one JSON object a line and nothing else:
{{"tool": "search", "arguments": {{"text": TEXT}}}}
{{"tool": "replace_line", "arguments": {{"path": PATH, "line": LINE, "old": OLD, "new": NEW}}}}

The task: rename `_Node` to `_CachedBlock` everywhere.

Your calls so far, and what they returned:
{{"tool": "search", "arguments": {{"text": "_Node"}}}}
{found}
{{"tool": "replace_line", "arguments": {{"path": "zse/kv/prefix.py", "line": {line}, "old": {old}, \
"new": {new}}}}}
done

Write the calls that are left, one for each of the other lines that were found."""
_CHAT = "Tell a short story of a fox that learns to swim, and of what the river thinks of it."
_TEXT_CHARACTERS = 2200
"""Of each sample: some five hundred tokens."""
_FOUND_LINES = 12
_request_ids = itertools.count()


class _Answer(NamedTuple):
    token_ids: list[int]
    decode_seconds: float
    """From the first token to the last."""


@record
class SpeculationResult:
    """What drafts were worth on one kind of text."""

    text: str
    output_tokens: int
    tokens_per_step: float
    """Behind the first token."""
    acceptance: float
    """Share of the checked drafts that stood; 0 where none were checked."""
    tokens_per_second: float
    tokens_per_second_without: float
    is_same_answer: bool
    """Whether both ways gave the same tokens."""

    @property
    def speedup(self) -> float:
        return self.tokens_per_second / self.tokens_per_second_without


def measure_speculation(
    model: LoadedModel, options: LoadOptions, *, num_output: int, rounds: int
) -> Iterator[SpeculationResult]:
    """Answer an edit of code, an agent's task, a retrieval and a chat, with drafts and without.

    All of it greedily.

    Args:
        model: A model whose engine speculates; nothing else may use it meanwhile.
        options: How it was loaded.
        num_output: Tokens of an answer, two at least.
        rounds: How often each way answers; the quickest counts.

    Raises:
        UsageError: The model writes no text.
        ContextLengthError, CapacityError: It has no room for the texts.
    """
    core = model.core
    if not isinstance(core, EngineCore):
        raise UsageError("a model that writes no text cannot speculate")
    # Over the same weights and pool: both keep nothing, and one waits while the other answers.
    plain = make_core(core.runner, with_values(options, {"speculate": "off"}), core.end_token_ids)
    assert isinstance(plain, EngineCore)
    for name, question in _questions().items():
        prompt = _prompt_of(model, question)
        yield _compare(name, prompt, core, plain, num_output=num_output, rounds=rounds)


def _compare(
    name: str,
    prompt: list[int],
    core: EngineCore,
    plain: EngineCore,
    *,
    num_output: int,
    rounds: int,
) -> SpeculationResult:
    before = core.stats().speculation
    pairs = [
        (_answer(plain, prompt, num_output), _answer(core, prompt, num_output))
        for _ in range(rounds)
    ]
    after = core.stats().speculation
    num_accepted = after.accepted_tokens - before.accepted_tokens
    decoded = [len(drafted.token_ids) - 1 for _, drafted in pairs]
    rates = [
        max((len(one.token_ids) - 1) / one.decode_seconds for one in way if one.decode_seconds)
        for way in zip(*pairs, strict=True)
    ]
    return SpeculationResult(
        text=name,
        output_tokens=decoded[0] + 1,
        tokens_per_step=sum(decoded) / max(1, sum(decoded) - num_accepted),
        acceptance=num_accepted / max(1, after.draft_tokens - before.draft_tokens),
        tokens_per_second=rates[1],
        tokens_per_second_without=rates[0],
        is_same_answer=all(one.token_ids == other.token_ids for one, other in pairs),
    )


def _answer(core: EngineCore, prompt: list[int], num_output: int) -> _Answer:
    params = SamplingParams(temperature=0.0, max_tokens=num_output, min_tokens=2)
    name = f"speculation-{next(_request_ids)}"
    core.add_request(Request(request_id=name, prompt_token_ids=prompt, params=params))
    token_ids: list[int] = []
    began = ended = 0.0
    while core.has_work:
        events = core.step()
        ended = time.perf_counter()
        token_ids += [event.token_id for event in events if event.token_id is not None]
        if token_ids and not began:
            began = ended
    return _Answer(token_ids, ended - began)


def _questions() -> dict[str, str]:
    code, prose = (
        (SAMPLE / name).read_text()[:_TEXT_CHARACTERS] for name in ("code.txt", "prose.txt")
    )
    return {
        "code edit": _EDIT.format(code=code),
        "agent": _agent_question((SAMPLE / "code.txt").read_text()),
        "retrieval": _RETRIEVAL.format(prose=prose),
        "chat": _CHAT,
    }


def _agent_question(code: str) -> str:
    """Return an agent's task half way: what a search found, and the first of its edits."""
    lines = enumerate(code.splitlines(), start=1)
    found = [(number, line.strip()) for number, line in lines if "_Node" in line][:_FOUND_LINES]
    (number, first), *_ = found
    return _AGENT.format(
        found="\n".join(f"zse/kv/prefix.py:{at}: {line}" for at, line in found),
        line=number,
        old=json.dumps(first),
        new=json.dumps(first.replace("_Node", "_CachedBlock")),
    )


def _prompt_of(model: LoadedModel, question: str) -> list[int]:
    """Return a question's tokens, in the model's form of a chat where it has one."""
    try:
        text = load_chat_template(model.reader).render([{"role": "user", "content": question}])
    except TemplateError:
        text = question
    return model.tokenizer.encode(text)
