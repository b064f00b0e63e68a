"""An engine over the runner of hashes, with builders of requests; a random model as a file."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import pytest
from hash_model import expected_tokens, hidden_of, logprob_of
from scripted_runner import ScriptedRunner

from zse.engine.async_engine import AsyncEngine
from zse.engine.core import EngineCore
from zse.engine.request import Request, SamplingParams, TokenEvent
from zse.options import load_options
from zse.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


OWN = ("aging_steps", "eos_token_ids", "begin_speculation")
"""Arguments of a core beside its options."""
OUTER = ("priority", "cache_salt", "query", "tenant", "weight", "grammar", "steps")
"""Fields of a request beside its parameters."""


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
    logprob_of = staticmethod(logprob_of)
    hidden_of = staticmethod(hidden_of)

    @staticmethod
    def core(runner: ScriptedRunner | None = None, **options: object) -> EngineCore:
        own = {k: options.pop(k) for k in OWN if k in options}
        return EngineCore(runner or ScriptedRunner(), load_options(**options), **own)  # type: ignore[arg-type]

    @staticmethod
    def request(request_id: str, prompt: Sequence[int], **params: object) -> Request:
        outer = {k: params.pop(k) for k in OUTER if k in params}
        params.setdefault("temperature", 0.0)
        return Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            params=SamplingParams(**params),  # type: ignore[arg-type]
            **outer,  # type: ignore[arg-type]
        )


class AheadHarness(Harness):
    """The same with a device that takes the next step before it has answered."""

    Runner = staticmethod(functools.partial(ScriptedRunner, looks_ahead=True))

    @staticmethod
    def core(runner: ScriptedRunner | None = None, **options: object) -> EngineCore:
        return Harness.core(runner or AheadHarness.Runner(), **options)


@pytest.fixture(scope="session")
def engine() -> type[Harness]:
    return Harness


@pytest.fixture(scope="session")
def ahead() -> type[AheadHarness]:
    return AheadHarness


@pytest.fixture
def make_engine(engine, letters):
    made = []

    def make(runner=None, **options):
        runner = runner or engine.Runner(num_blocks=64, max_position=4096)
        made.append(AsyncEngine(engine.core(runner, **options), letters))
        return made[-1]

    yield make
    for async_engine in made:
        async_engine.close()


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
