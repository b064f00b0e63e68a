"""A runner whose answers are hashes of what it finds in its KV pool.

It writes each token into the block and slot that the block table names, and chooses the next token
from the whole history read back through the table. A block that is shared wrongly, freed too early
or overwritten changes the history, and with it the answer.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from zse.backends.types import FinishedStep, SampledToken, SamplingRow, StepBatch
from zse.engine.core import EngineCore, EngineOptions
from zse.engine.request import Request, SamplingParams, TokenEvent
from zse.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def next_token(history: Sequence[int], row: SamplingRow, vocab_size: int) -> int:
    """The model: a hash of the history, of the random draw, and of nothing else."""
    draw = (row.seed, row.step) if row.temperature > 0 else ()
    digest = hashlib.blake2b(repr((list(history), draw)).encode(), digest_size=8).digest()
    token = int.from_bytes(digest, "little") % vocab_size
    while token in row.banned_token_ids:
        token = (token + 1) % vocab_size
    return token


class ScriptedRunner:
    looks_ahead = False

    def __init__(
        self,
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        max_position: int = 256,
        vocab_size: int = 97,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_position = max_position
        self.vocab_size = vocab_size
        self.cells = [[-1] * block_size for _ in range(num_blocks)]
        self.batches: list[StepBatch] = []
        self.error: Exception | None = None
        self.is_closed = False

    def submit(self, batch: StepBatch) -> FinishedStep:
        if self.error is not None:
            raise self.error
        assert len({chunk.sequence_slot for chunk in batch.chunks}) == len(batch.chunks)
        self.batches.append(batch)
        written: set[tuple[int, int]] = set()
        for chunk in batch.chunks:
            for offset, token in enumerate(chunk.token_ids):
                block, cell = self._cell(chunk.block_table, chunk.start_position + offset)
                assert (block, cell) not in written, "two sequences write one cell"
                written.add((block, cell))
                self.cells[block][cell] = token
        sampled: list[SampledToken | None] = []
        for chunk, row in zip(batch.chunks, batch.sampling, strict=True):
            assert (row is None) == (chunk.wants_logits == "none")
            if row is None:
                sampled.append(None)
                continue
            history = self._history(chunk.block_table, chunk.start_position + len(chunk.token_ids))
            assert history == [*row.prompt_token_ids, *row.output_token_ids]
            token = next_token(history, row, self.vocab_size)
            logprob = None if row.logprobs is None else -0.5
            top = [(token, -0.5)] * (row.logprobs or 0)
            sampled.append(SampledToken(token_id=token, logprob=logprob, top=top))
        return FinishedStep(sampled=sampled)

    def logits(self, token_ids: Sequence[int]) -> list[list[float]]:
        return [[float(token)] * self.vocab_size for token in token_ids]

    def close(self) -> None:
        self.is_closed = True

    def _cell(self, table: Sequence[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size

    def _history(self, table: Sequence[int], num_tokens: int) -> list[int]:
        cells = (self._cell(table, position) for position in range(num_tokens))
        return [self.cells[block][cell] for block, cell in cells]


def expected_tokens(
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    index: int = 0,
    vocab_size: int = 97,
    eos: Sequence[int] = (),
) -> list[int]:
    """What a request answers when nothing else runs, computed without any engine."""
    from zse.engine.sequence import seed_of_choice

    ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
    output: list[int] = []
    assert params.max_tokens is not None
    while len(output) < params.max_tokens:
        banned = ends if len(output) < params.min_tokens else set()
        row = SamplingRow(
            temperature=params.temperature,
            seed=seed_of_choice(params.seed or 0, index),
            step=len(output),
            banned_token_ids=banned,
        )
        output.append(next_token([*prompt, *output], row, vocab_size))
        if output[-1] in ends and len(output) > params.min_tokens:
            break
    return output


def run_to_end(core: EngineCore, *, max_steps: int = 5000) -> list[TokenEvent]:
    """Step until nothing is left, checking who owns the blocks after each step."""
    events: list[TokenEvent] = []
    for _ in range(max_steps):
        if not core.has_work:
            return events
        events += core.step()
        core.check_consistency()
    raise AssertionError(f"work is left after {max_steps} steps: {core.stats()}")


def tokens_of(events: Sequence[TokenEvent], request_id: str, index: int = 0) -> list[int]:
    return [
        event.token_id
        for event in events
        if (event.request_id, event.index) == (request_id, index) and event.token_id is not None
    ]


class Harness:
    """The helpers of this file, handed to tests as one fixture."""

    Runner = ScriptedRunner
    expected_tokens = staticmethod(expected_tokens)
    run_to_end = staticmethod(run_to_end)
    tokens_of = staticmethod(tokens_of)

    @staticmethod
    def core(runner: ScriptedRunner | None = None, **options: object) -> EngineCore:
        return EngineCore(runner or ScriptedRunner(), EngineOptions(**options))  # type: ignore[arg-type]

    @staticmethod
    def request(request_id: str, prompt: Sequence[int], **params: object) -> Request:
        outer = {k: params.pop(k) for k in ("priority", "cache_salt") if k in params}
        params.setdefault("temperature", 0.0)
        return Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            params=SamplingParams(**params),  # type: ignore[arg-type]
            **outer,  # type: ignore[arg-type]
        )


@pytest.fixture(scope="session")
def engine() -> type[Harness]:
    return Harness


@pytest.fixture(scope="session")
def scripted_runner() -> Callable[..., ScriptedRunner]:
    return ScriptedRunner


CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory) -> Path:
    """A Llama with random weights and a tokenizer whose tokens are single bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("random-llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(alphabet) + 2,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.5,  # far from uniform logits, so that greedy answers have margins
        bos_token_id=len(alphabet),
        eos_token_id=len(alphabet) + 1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def random_zse(random_checkpoint, tmp_path_factory) -> Path:
    """The same model as a .zse file with INT8 weights."""
    from zse.format import convert_model

    path = tmp_path_factory.mktemp("zse") / "random.zse"
    convert_model(random_checkpoint, path, quantization="int8")
    return path


@pytest.fixture(scope="session")
def letters() -> Tokenizer:
    """Token i is the character with code 32 + i (a new line for the last), to read in the tests."""
    from tokenizers import Tokenizer as Builder
    from tokenizers import decoders, models, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    characters = [*map(chr, range(32, 128)), "\n"]
    vocabulary = {byte_level.pre_tokenize_str(c)[0][0]: i for i, c in enumerate(characters)}
    builder = Builder(models.BPE(vocabulary, []))
    builder.pre_tokenizer = byte_level
    builder.decoder = decoders.ByteLevel()
    sections = {"tokenizer.json": builder.to_str().encode()}
    return Tokenizer.from_sections(sections.get)
