"""The smallest tokenizer that a checkpoint can be converted with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_tokenizer(folder: Path, words: int = 8) -> None:
    """Write a tokenizer.json of a few whole words into a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"<unk>": 0} | {f"w{index}": index for index in range(1, words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
