"""A server whose model answers what the conversation dictates, turn by turn.

A user's message holds ``answers: A ||| B``: A is the first answer after it, B the one after a tool
has been called, and so on. A text to embed has a vector that depends on its bytes alone.
"""

import importlib.util
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "serve" / "scripted_server.py"
spec = importlib.util.spec_from_file_location("scripted_server", SCRIPT)
scripted = importlib.util.module_from_spec(spec)
sys.modules["scripted_server"] = scripted
spec.loader.exec_module(scripted)

from zse.engine.output import Delta  # noqa: E402
from zse.engine.reading import PromptReport  # noqa: E402
from zse.serve.start import start  # noqa: E402
from zse.settings import load_settings  # noqa: E402

MAX_CONTEXT = 1 << 20
VECTOR_SIZE = 8


class WholeTemplate:
    """The messages as JSON: nothing is lost on the way to the script."""

    def render(self, messages, **_):
        return json.dumps(list(messages))


class DictatedEngine(scripted.ScriptedEngine):
    """Answers the script; embeds bytes."""

    def check(self, prompt_token_ids, params, query=None):
        pass

    def script(self, prompt):
        return dictated(json.loads(prompt)), 0, -1

    async def generate(self, request, **options):
        if request.query is not None:
            yield embedding(request.prompt_token_ids)
            return
        async for delta in super().generate(request, **options):
            yield delta


def dictated(messages):
    """Return the answer: that of the last script, by the number of answers that follow it."""
    texts = [str(message.get("content") or "") for message in messages]
    place = max(i for i, text in enumerate(texts) if "answers:" in text)
    answers = re.split(r"\s*\|\|\|\s*", texts[place].split("answers:", 1)[1].strip())
    given = sum(message["role"] == "assistant" for message in messages[place:])
    return answers[min(given, len(answers) - 1)]


def embedding(token_ids):
    counts = [1.0 + sum(1 for token in token_ids if token % VECTOR_SIZE == i) for i in range(8)]
    norm = math.sqrt(sum(count * count for count in counts))
    report = PromptReport(vector=[count / norm for count in counts])
    return Delta(
        index=0,
        text="",
        finish_reason="stop",
        prompt_tokens=len(token_ids),
        report=report,
    )


def dictated_model():
    return replace(
        scripted.scripted_model(name="dictated", template=WholeTemplate),
        engine=DictatedEngine(),
        max_context=MAX_CONTEXT,
        vector_size=VECTOR_SIZE,
    )


def main() -> int:
    settings = load_settings()
    options = replace(settings.serve, model="dictated", port=0)
    return start(replace(settings, serve=options), lambda _state: dictated_model())


if __name__ == "__main__":
    sys.exit(main())
