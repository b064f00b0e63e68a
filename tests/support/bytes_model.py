"""A real engine for tests of the server: a random model whose tokens are bytes."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from zse.engine.async_engine import AsyncEngine
from zse.engine.core import EngineCore
from zse.format import ZSEReader, convert_model
from zse.models.runner import load_runner
from zse.options import load_options
from zse.serve.state import LoadedModel
from zse.text.template import load_chat_template
from zse.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL = ["<s>", "</s>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_checkpoint(folder: Path, seed: int = 0) -> None:
    """A Llama with random weights; token i is byte i, in the order of the byte alphabet."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(alphabet) + len(SPECIAL),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.5,
        bos_token_id=len(alphabet),
        eos_token_id=len(alphabet) + 1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="session")
def bytes_model(tmp_path_factory):
    """The model as a .zse file."""
    folder = tmp_path_factory.mktemp("bytes")
    write_checkpoint(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    path = tmp_path_factory.mktemp("converted") / "bytes.zse"
    convert_model(folder, path, quantization="bf16")
    return path


@pytest.fixture(scope="session")
def loaded(bytes_model):
    """The model, loaded once; its engine runs to the end of the session."""
    with ExitStack() as stack:
        reader = stack.enter_context(ZSEReader(bytes_model))
        tokenizer = load_tokenizer(reader)
        runner = load_runner(
            reader, load_options(device="cpu", num_blocks=64, block_size=16, threads=1)
        )
        core = EngineCore(runner, load_options(), eos_token_ids=tokenizer.eos_ids)
        engine = AsyncEngine(core, tokenizer)
        stack.callback(engine.close)
        yield LoadedModel(
            name="bytes",
            engine=engine,
            tokenizer=tokenizer,
            template=load_chat_template(reader),
            max_context=core.max_context,
            vocab_size=runner.vocab_size,
            fingerprint="zse-test",
            created=int(time.time()),
            vector_size=runner.spec.hidden_size,
            spec=runner.spec,
        )
