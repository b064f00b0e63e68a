"""Each trained model in turn; those that were not fetched are skipped with the command."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from real_model import RealModel, find_checkpoint, skip_unknown_family

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT_MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma3-270m")


@pytest.fixture(scope="session", params=TEXT_MODELS)
def model(request: pytest.FixtureRequest) -> Iterator[RealModel]:
    checkpoint = find_checkpoint(request.param)
    skip_unknown_family(request.param, checkpoint)
    with tempfile.TemporaryDirectory(prefix="zse-real-") as folder:  # pytest would keep gigabytes
        found = RealModel(request.param, checkpoint, Path(folder))
        yield found
        found.close()


@pytest.fixture
def chat_model(model: RealModel) -> RealModel:
    """Each model that has a chat template."""
    if not model.tokenizer.chat_template:
        pytest.skip(f"{model.name} is a base model, without a chat template")
    return model
