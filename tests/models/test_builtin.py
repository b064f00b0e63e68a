"""The built-in model: found by name, complete, small, and of the form that transformers reads."""

from __future__ import annotations

import json

import pytest

from zse.errors import NotFoundError
from zse.models import builtin
from zse.models.builtin import BUILTIN_MODELS, builtin_checkpoint
from zse.models.families import read_checkpoint
from zse.text.tokenizer import Tokenizer


def test_tiny_is_a_builtin_and_a_path_is_not():
    assert "tiny" in BUILTIN_MODELS
    assert "./tiny" not in BUILTIN_MODELS
    assert "" not in BUILTIN_MODELS


def test_an_unknown_builtin_names_the_known_ones():
    with pytest.raises(NotFoundError) as caught:
        builtin_checkpoint("huge")
    assert "tiny" in caught.value.hint


def test_missing_package_data_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(builtin, "BUILTIN_MODELS", {"tiny": tmp_path})
    with pytest.raises(NotFoundError, match=r"lacks config\.json, model\.safetensors"):
        builtin_checkpoint("tiny")


def test_every_builtin_is_at_most_ten_megabytes():
    for name in BUILTIN_MODELS:
        files = list(builtin_checkpoint(name).iterdir())
        assert sum(file.stat().st_size for file in files) <= 10_000_000


def test_tiny_is_a_small_llama_with_grouped_queries():
    folder = builtin_checkpoint("tiny")
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    ours = read_checkpoint(config, generation)
    assert ours.family == "llama"
    assert ours.attention.num_kv_heads < ours.attention.num_heads
    assert ours.max_position == 2048
    header_bytes = 8192
    weights = (folder / "model.safetensors").stat().st_size - header_bytes
    assert weights / 2 <= 4_000_000


def test_tiny_ends_an_answer_with_its_own_token():
    folder = builtin_checkpoint("tiny")
    tokenizer = Tokenizer.from_sections(
        lambda name: (folder / name).read_bytes() if (folder / name).is_file() else None
    )
    ends = [tokenizer.token_text(token_id) for token_id in tokenizer.eos_ids]
    assert ends[0] == "<|im_end|>"
    assert "<|endoftext|>" in ends
