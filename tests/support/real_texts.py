"""Lines and conversations to try the tokenizer and the template of a trained model on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tokenizer_samples import EMOJI, SCRIPTS, WORDS, mixed_lines

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = (
    "You are a helpful assistant.",
    "Answer in one sentence.\n\nNever apologize.",
    "Tu réponds toujours en français. 🙂",
)
QUESTIONS = (
    "What does `x = [i ** 2 for i in range(10)]` do?",
    "Was ist die Hauptstadt von Österreich?",
    "  Say   this\twith\nits spaces.  ",
    'Is {"a": [1, 2]} valid JSON? And "it\'s <b>bold</b> & loud"?',
    "日本の首都はどこですか。",
    "",
)
ANSWERS = ("It squares the numbers.", "Wien.\n", "東京です。🇯🇵", "Yes; see `json.loads`.")
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a city; °C or °F",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "for example Zürich"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    },
)


def real_lines(count: int, specials: tuple[str, ...]) -> list[str]:
    """Return lines of this repository's code and prose, and as many made ones of every script."""
    folders = ("zse", "docs", "tests/text")
    paths = sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".c", ".toml")
    )
    written = [line for path in paths for line in path.read_text("utf-8").split("\n")]
    step = len(written) // (count // 2)
    assert step >= 1, f"the repository has {len(written)} lines"
    # Some stand alone, some with those after them: line ends and indents are tokens too.
    chosen = [
        "\n".join(written[start : start + 1 + start % 4])
        for start in range(0, step * (count // 2), step)
    ]
    return chosen + mixed_lines(count - len(chosen), specials)


def conversations(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """Return messages and tools: of one and many turns, with and without system and calls."""
    rng = random.Random(seed)
    return [_conversation(rng, has_tools=index % 3 == 0) for index in range(count)]


def _conversation(rng: random.Random, *, has_tools: bool) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(SYSTEM)})
    for _ in range(rng.randint(0, 4)):
        messages.append({"role": "user", "content": _question(rng)})
        if has_tools and rng.random() < 0.6:
            messages += _called(rng)
        messages.append({"role": "assistant", "content": rng.choice(ANSWERS)})
    messages.append({"role": "user", "content": _question(rng)})
    return {"messages": messages, "tools": list(TOOLS) if has_tools else None}


def _question(rng: random.Random) -> str:
    words = " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))
    return rng.choice((*QUESTIONS, words, rng.choice(SCRIPTS), rng.choice(EMOJI) + words))


def _called(rng: random.Random) -> list[dict[str, Any]]:
    """Return an answer that calls one tool or two, and what these said."""
    calls = [
        {"name": "get_weather", "arguments": {"city": rng.choice(("Zürich", "東京", 'a "b"'))}},
        {"name": "add", "arguments": {"a": rng.randint(-9, 9), "b": rng.random()}},
    ][: rng.randint(1, 2)]
    said = [{"role": "tool", "content": json.dumps({"result": rng.randint(0, 99)})} for _ in calls]
    functions = [{"type": "function", "function": call} for call in calls]
    return [{"role": "assistant", "content": "", "tool_calls": functions}, *said]
