"""A server whose model is a script: what to answer is said in the prompt. Run as a child process.

say:TEXT     answers TEXT, one character a token; the last one in the prompt counts
slow:N       answers N tokens, 20 ms apart
break:N      fails after N tokens
crash:N      takes the engine down after N tokens
silent:MS    waits before the first token
held:PATH    waits behind the first token until the file is there
"""

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from zse.engine.admission import check_request
from zse.engine.output import Delta, TokenLogprob, TopLogprob
from zse.engine.request import CheckedDrafts
from zse.engine.stats import EngineStats
from zse.engine.step_clock import TimedStep
from zse.errors import ContextLengthError, DeviceError, EngineError, TemplateError
from zse.options import load_options
from zse.serve.start import start
from zse.serve.state import AppState, LoadedModel
from zse.settings import load_settings
from zse.text.facts import TokenizerFacts

MAX_CONTEXT = 512
VOCAB_SIZE = 256


class ByteTokenizer:
    """One token a byte."""

    facts = TokenizerFacts(kind="byte_level", vocab_size=256)

    def encode(self, text, *, add_special_tokens=True, parse_special=True):
        return list(text.encode())

    def decode(self, ids, *, skip_special_tokens=True):
        return bytes(ids).decode(errors="replace")


class PlainTemplate:
    """``role: content`` lines."""

    def render(self, messages, tools=None, add_generation_prompt=True, **kwargs):
        if any(m["content"] == "refuse" for m in messages):
            raise TemplateError(
                "the template refused: /opt/models/secret/template.jinja at 0x7f00ab12"
            )
        lines = [f"{m['role']}: {m['content']}" for m in messages]
        if tools:
            lines.insert(0, "tools: " + ",".join(t["function"]["name"] for t in tools))
        return "\n".join(lines)


@dataclass
class ScriptedEngine:
    """Implements what the server needs of an engine."""

    is_healthy: bool = True
    failure: BaseException | None = None
    active: int = 0
    cancelled: int = 0
    seen: list[Any] = field(default_factory=list)
    max_running: int = 64
    forms: list[Any] = field(default_factory=list)

    def settle(self):
        """Have all weights there."""

    @property
    def num_active(self):
        return self.active

    def check(self, prompt_token_ids, params, query=None):
        check_request(prompt_token_ids, params, vocab_size=VOCAB_SIZE)
        if len(prompt_token_ids) + (params.max_tokens or 1) > MAX_CONTEXT:
            raise ContextLengthError("too long")

    def stats(self):
        return EngineStats(num_running=self.active, num_waiting=self.cancelled)

    def memory_bytes(self):
        return {"weights": 4096, "kv_cache": 1024}

    async def drain(self, timeout_seconds):
        self.is_draining = True

    def limit_running(self, max_running):
        self.max_running = max_running

    def close(self):
        self.is_healthy = False

    @property
    def grammars(self):
        """Forms are noted, not kept."""
        return SimpleNamespace(compile=lambda spec, _: self.forms.append(spec) or spec)

    async def generate(self, request, **_):
        params, steps = request.params, request.steps
        prompt = bytes(request.prompt_token_ids).decode(errors="replace")
        self.seen.append((prompt, params, request.cache_salt))
        self.active += 1
        if request.on_start is not None:
            request.on_start()
        done = False
        try:
            for index in range(params.n):
                async for delta in self._choice(prompt, params, index):
                    if steps is not None:
                        _note_step(steps, len(request.prompt_token_ids))
                    yield delta
            done = True
        finally:
            self.active -= 1
            self.cancelled += not done

    def script(self, prompt):
        """Return the answer, the seconds between its tokens, and where it breaks (-1: nowhere)."""
        return _script(prompt)

    async def _choice(self, prompt, params, index):
        text, pause, break_at = self.script(prompt)
        stop = None
        crash_at = int(prompt.split("crash:")[1].split()[0]) if "crash:" in prompt else -1
        held_until = Path(prompt.split("held:")[1].split()[0]) if "held:" in prompt else None
        if "silent:" in prompt:
            await asyncio.sleep(int(prompt.split("silent:")[1].split()[0]) / 1000)
        for position, character in enumerate(text):
            while position == 1 and held_until is not None and not held_until.exists():
                await asyncio.sleep(0.01)
            if position == crash_at:
                self.failure, self.is_healthy = DeviceError("the device is gone"), False
            if self.failure is not None:
                raise EngineError(f"the engine crashed: {self.failure}")
            if position == break_at:
                raise EngineError("the engine broke at /opt/secret/place")
            stop = next((s for s in params.stop if text.startswith(s, position)), None)
            if stop is not None:
                break
            if position == params.max_tokens:
                yield _delta(index, prompt, finish_reason="length")
                return
            await asyncio.sleep(pause)
            yield _delta(index, prompt, character, params=params)
        yield _delta(index, prompt, finish_reason="stop", stop=stop)


def _note_step(steps, num_prompt_tokens):
    """Note a step that read the prompt, and then one for each token."""
    now, reads_prompt = time.perf_counter(), not steps.steps
    num_tokens = num_prompt_tokens if reads_prompt else 1
    steps.add(TimedStep(now, now, reads_prompt=reads_prompt, num_tokens=num_tokens))


def _script(prompt):
    if "say:" in prompt:
        return prompt.rsplit("say:", 1)[1], 0, -1
    if "slow:" in prompt:
        return "x" * int(prompt.split("slow:")[1].split()[0]), 0.02, -1
    if "break:" in prompt:
        return "y" * 50, 0, int(prompt.split("break:")[1].split()[0])
    return "Hello world", 0, -1


def _delta(index, prompt, text="", finish_reason=None, params=None, stop=None):
    logprobs = []
    if params is not None and params.logprobs is not None:
        same = TopLogprob(text, 1, -0.1, list(text.encode()))
        top = [same, TopLogprob("?", 2, float("-inf"), [63])]
        logprobs = [TokenLogprob(**same._asdict(), top=top[: params.logprobs])]
    return Delta(
        index=index,
        text=text,
        token_ids=list(text.encode()),
        logprobs=logprobs,
        finish_reason=finish_reason,
        prompt_tokens=len(prompt.encode()),
        stop=stop,
        drafts=CheckedDrafts(accepted=3, rejected=1),
    )


def scripted_model(name="scripted", template=PlainTemplate):
    return LoadedModel(
        name=name,
        engine=ScriptedEngine(),
        tokenizer=ByteTokenizer(),
        template=template() if template else None,
        max_context=MAX_CONTEXT,
        vocab_size=VOCAB_SIZE,
        fingerprint="zse-test",
        created=1,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--load-until", type=Path)
    parser.add_argument("--load-fails", action="store_true")
    parser.add_argument("--drain-seconds", type=float, default=5.0)
    parser.add_argument("--max-queue", type=int, default=256)
    parser.add_argument("--max-running", type=int, default=64)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()

    def load(state: AppState) -> LoadedModel:
        state.phase = "weights"
        time.sleep(arguments.load_seconds)
        while arguments.load_until is not None and not arguments.load_until.exists():
            time.sleep(0.01)
        if arguments.load_fails:
            raise TemplateError("no such thing")
        return scripted_model()

    settings = load_settings()  # what a test says in the environment
    options = replace(
        settings.serve,
        model="scripted",
        port=arguments.port,
        drain_seconds=arguments.drain_seconds,
        max_queue=arguments.max_queue,
        load=load_options(max_sequences=arguments.max_running),
    )
    return start(replace(settings, serve=options), load)


if __name__ == "__main__":
    sys.exit(main())
