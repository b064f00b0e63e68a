"""The names that programs know: a GGUF file is told by its first bytes, loaded and asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from gguf_files import tokenizer_settings, write_gguf

from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.errors import UsageError
from zse.gguf import GGUFWrapper, is_gguf_file
from zse.models.builtin import BUILTIN_MODELS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model as a GGUF file."""
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = BUILTIN_MODELS["tiny"]
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    ends = {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 0}
    settings = tokenizer_settings(tokenizer, "qwen2") | ends
    return write_gguf(folder / "tiny.gguf", checkpoint, "llama", **settings)


def test_a_file_is_told_by_its_first_bytes(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"else")
    assert is_gguf_file(tiny_gguf)
    assert not is_gguf_file(tmp_path / "m.gguf")
    assert not is_gguf_file(tmp_path / "absent")
    with pytest.raises(UsageError, match="no GGUF file"):
        GGUFWrapper(tmp_path / "m.gguf")


def test_an_answer_is_that_of_the_checkpoint(tiny_gguf: Path) -> None:
    with GGUFWrapper(tiny_gguf) as wrapper:
        wrapper.load(device="cpu", quant="int8")
        found = "".join(wrapper.generate("The capital of France", 8, 0.0))
    with LLM("tiny", device="cpu") as llm:
        params = SamplingParams(max_tokens=8, temperature=0.0)
        expected = llm.generate("The capital of France", params)[0].outputs[0].text
    assert found
    assert found == expected
