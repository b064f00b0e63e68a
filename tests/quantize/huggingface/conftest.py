"""Random tiny models of every family, converted, with a tokenizer inside."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from zse.format import convert_model
from zse.models.builtin import builtin_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


class MakeFile(Protocol):
    def __call__(self, family: str, quantization: str, **config: Any) -> Path: ...


@pytest.fixture(scope="session")
def make_file(make_checkpoint, tmp_path_factory: pytest.TempPathFactory) -> MakeFile:
    """Return a function that makes a .zse file: family, quantization, changed config values."""
    made: dict[str, Path] = {}

    def make(family: str, quantization: str, **config: Any) -> Path:
        key = repr((family, quantization, sorted(config.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp("huggingface")
            checkpoint = make_checkpoint(folder / "model", family, **config)
            shutil.copy(builtin_checkpoint("tiny") / "tokenizer.json", checkpoint)
            convert_model(checkpoint, folder / "m.zse", quantization)
            made[key] = folder / "m.zse"
        return made[key]

    return make
