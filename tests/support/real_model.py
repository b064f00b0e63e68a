"""One trained model that ``scripts/real_models`` fetched, its .zse files and its reference."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from zse.evaluate.models import CheckpointReader, Remembering

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "real"))
sys.path.insert(0, str(ROOT / "scripts" / "bench"))

from real_catalog import checkpoint_of, models_folder, read_catalog, state_of  # noqa: E402

SCHEMES = ("bf16", "fp16", "int8", "nf4", "int4")
CHAT_PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "What is the capital of France? Answer with one sentence.",
    "Translate to German: The weather is nice today.",
    "Explain what a hash table is, briefly.",
)


class RealModel:
    """A fetched checkpoint, and what is made of it when a test first asks."""

    def __init__(self, name: str, checkpoint: Path, folder: Path) -> None:
        self.name = name
        self.checkpoint = checkpoint
        self._folder = folder
        self._reference: Remembering | None = None
        self._tokenizer: Any = None

    def file(self, quant: str) -> Path:
        """Return the .zse file at one quantization."""
        from zse.quantize.convert import convert_model

        path = self._folder / f"{quant}.zse"
        if not path.exists():
            convert_model(self.checkpoint, path, quant)
        return path

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of ``transformers``."""
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self.checkpoint)
        return self._tokenizer

    @property
    def reference(self) -> Remembering:
        """The model in ``transformers``, in float32."""
        if self._reference is None:
            self._reference = Remembering(CheckpointReader(self.checkpoint))
        return self._reference

    def prompts(self) -> list[list[int]]:
        """Return prompts as token ids: conversations, or texts to go on with for a base model."""
        tokenizer = self.tokenizer
        if not tokenizer.chat_template:
            return [tokenizer.encode(f"Question: {each}\nAnswer:") for each in CHAT_PROMPTS]
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": each}], add_generation_prompt=True, tokenize=False
            )
            for each in CHAT_PROMPTS
        ]
        return [tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def close(self) -> None:
        """Give the reference's memory back."""
        self._reference = None
        gc.collect()


def find_checkpoint(name: str) -> Path:
    """Return the checkpoint of a model, or skip and say which command fetches it."""
    row, folder = read_catalog()[name], models_folder()
    if (state := state_of(row, folder)) != "ready":
        missing = f"{name} is {state} in {folder}: scripts/real_models {name} makes it ready"
        if os.environ.get("ZSE_NIGHTLY") == "1" and not row.is_large:
            pytest.fail(missing)  # by night they are all fetched first
        pytest.skip(missing)
    return checkpoint_of(row, folder)


def skip_unknown_family(name: str, checkpoint: Path) -> None:
    """Skip a model whose family is not in ``zse/models/families`` yet."""
    from zse.models.families import all_families

    wanted = json.loads((checkpoint / "config.json").read_text())["architectures"]
    known = {name for family in all_families().values() for name in family.ARCHITECTURES}
    if not known.intersection(wanted):
        pytest.skip(f"{name} is a {wanted[0]}, and zse/models/families has no such family yet")
