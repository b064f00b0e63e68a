"""Logits in a folder: read once, told apart by model and window, never taken half-written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from zse.errors import UsageError
from zse.evaluate.kept import KeptReader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Counting:
    """Says the same of the same tokens, and counts how often it was asked."""

    vocab_size = 7

    def __init__(self) -> None:
        self.count = 0

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        self.count += 1
        rows = [np.arange(self.vocab_size, dtype=np.float32) * one for one in token_ids]
        return np.stack(rows)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def test_a_second_run_finds_what_the_first_read_and_loads_nothing(
    tmp_path: Path, model: Path
) -> None:
    reader, windows = Counting(), ([1, 2, 3], [4, 5])
    first = KeptReader(tmp_path / "kept", model, lambda: reader)
    expected = [first.logits(window) for window in windows]

    def never() -> Counting:
        raise AssertionError("the model was loaded")

    second = KeptReader(tmp_path / "kept", model, never)
    assert second.vocab_size == 7
    for window, rows in zip(windows, expected, strict=True):
        found = second.logits(window)
        np.testing.assert_array_equal(found, rows)
        assert found.dtype == np.float32
    assert reader.count == 2


def test_another_window_is_read(tmp_path: Path, model: Path) -> None:
    reader = Counting()
    kept = KeptReader(tmp_path / "kept", model, lambda: reader)
    kept.logits([1, 2])
    assert kept.logits([2, 1])[0, 1] == 2
    assert reader.count == 2


def test_a_checkpoint_that_changed_is_another(tmp_path: Path, model: Path) -> None:
    reader = Counting()
    KeptReader(tmp_path / "kept", model, lambda: reader).logits([1, 2])
    os.utime(model / "model.safetensors", ns=(1, 1))
    KeptReader(tmp_path / "kept", model, lambda: reader).logits([1, 2])
    assert reader.count == 2


def test_a_file_that_was_cut_is_read_anew(tmp_path: Path, model: Path) -> None:
    reader = Counting()
    expected = KeptReader(tmp_path / "kept", model, lambda: reader).logits([1, 2])
    (path,) = (tmp_path / "kept").glob("*.logits")
    path.write_bytes(path.read_bytes()[:-4])
    found = KeptReader(tmp_path / "kept", model, lambda: reader).logits([1, 2])
    np.testing.assert_array_equal(found, expected)
    assert reader.count == 2
    assert path.stat().st_size == 2 * 7 * 4


def test_a_place_that_is_no_folder_is_refused_before_anything_is_loaded(
    tmp_path: Path, model: Path
) -> None:
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(UsageError, match="cannot be kept"):
        KeptReader(tmp_path / "kept", model, Counting)
