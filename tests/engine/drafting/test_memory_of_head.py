"""What a model on a GPU leaves its head: that of the head, its ends and its keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from guessing_models import make_guessing_model

from zse.backends.gpu.budget import MARGIN_BYTES
from zse.engine.drafting.opening import memory_of_head
from zse.errors import UsageError
from zse.format.reader import ZSEReader
from zse.models.guess import model_of
from zse.models.runner import spec_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_head_takes_its_own_weights_and_room_for_tokens(tmp_path: Path) -> None:
    with ZSEReader(make_guessing_model(tmp_path, "qwen3_5", "bf16").path) as reader:
        spec = spec_of(reader)
        head = model_of(spec, spec.guesses[0])
        weights = sum(reader.entry(weight.name).length_bytes for weight in head.weights())
        attention = head.attention
        kv = 2 * 2 * attention.num_kv_heads * attention.head_dim * spec.max_position
        asked = memory_of_head(reader, spec) - MARGIN_BYTES
        assert weights + kv < asked


def test_a_file_without_a_head_leaves_none(random_zse: Path) -> None:
    with ZSEReader(random_zse) as reader, pytest.raises(UsageError, match="no head"):
        memory_of_head(reader, spec_of(reader))
