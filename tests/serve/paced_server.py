"""The real engine over a model that takes a set time for a step. Run as a child process.

It answers with letters until ``max_tokens``. Started with the flags of ``zse.serve``.
"""

import sys
import time
from types import SimpleNamespace

from zse.backends.types import FinishedStep, SampledToken
from zse.engine.async_engine import AsyncEngine
from zse.engine.core import EngineCore
from zse.engine.inbox import UnreadBounds
from zse.option import with_flags
from zse.options import load_options
from zse.serve.command_line import build_parser
from zse.serve.start import start
from zse.serve.state import LoadedModel
from zse.settings import load_settings

VOCAB_SIZE = 256


class ByteTokenizer:
    """One token a byte; encoding takes a set time for a character."""

    special_ids: frozenset[int] = frozenset()
    facts = SimpleNamespace(kind="bytes", strips_space=False)
    vocab_size = VOCAB_SIZE
    eos_ids = ()

    def __init__(self, seconds_per_character=0.0):
        self.seconds_per_character = seconds_per_character

    def encode(self, text, *, add_special_tokens=True, parse_special=True):
        time.sleep(len(text) * self.seconds_per_character)
        return list(text.encode())

    def decode(self, ids, *, skip_special_tokens=True):
        return bytes(ids).decode(errors="replace")

    def token_bytes(self, token_id):
        return bytes([token_id])

    def token_text(self, token_id):
        return chr(token_id)


class PlainTemplate:
    """``role: content`` lines."""

    def render(self, messages, tools=None, add_generation_prompt=True, **kwargs):
        return "\n".join(f"{m['role']}: {m['content']}" for m in messages)


class PacedRunner:
    """Answers each chunk with the letter that its position says."""

    looks_ahead = False
    steps_in_flight = 1
    is_encoder = False
    num_checkpoints = None
    most_drafts = 64
    windows = ()
    most_sequences = None
    vocab_size = VOCAB_SIZE

    def __init__(self, *, step_seconds=0.0, num_blocks=8192, max_position=131072):
        self.step_seconds = step_seconds
        self.num_blocks = num_blocks
        self.block_size = 16
        self.max_position = max_position

    def submit(self, batch):
        time.sleep(self.step_seconds)
        answers = []
        for chunk, rows in zip(batch.chunks, batch.sampling, strict=True):
            token = ord("a") + (chunk.start_position + len(chunk.token_ids)) % 26
            top = [(token - i, -float(i)) for i in range(rows[0].logprobs or 0)] if rows else []
            logprob = None if not rows or rows[0].logprobs is None else 0.0
            answers.append([SampledToken(token, logprob, top) for _ in rows])
        return FinishedStep(answers=answers)

    def rest(self, free_blocks):
        pass

    def memory_bytes(self):
        return {"weights": 0, "kv_cache": 0}

    def close(self):
        pass


def paced_model(*, step_seconds=0.0, seconds_per_character=0.0, unread=None, **options):
    """Return a model with an engine of its own."""
    runner = PacedRunner(step_seconds=step_seconds)
    tokenizer = ByteTokenizer(seconds_per_character)
    core = EngineCore(runner, load_options(**options))
    return LoadedModel(
        name="paced",
        engine=AsyncEngine(core, tokenizer, unread=unread or UnreadBounds()),
        tokenizer=tokenizer,
        template=PlainTemplate(),
        max_context=core.capacity_tokens,
        vocab_size=VOCAB_SIZE,
        fingerprint="zse-paced",
        created=1,
    )


def main() -> int:
    parser = build_parser()
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--load-seconds", type=float, default=0.0)
    flags = vars(parser.parse_args())
    step_seconds = flags.pop("step_ms") / 1000
    load_seconds = flags.pop("load_seconds")
    settings = with_flags(load_settings(), flags)

    def load(state) -> LoadedModel:
        time.sleep(load_seconds)
        return paced_model(
            step_seconds=step_seconds, max_sequences=settings.serve.load.batch.max_sequences
        )

    return start(settings, load)


if __name__ == "__main__":
    sys.exit(main())
