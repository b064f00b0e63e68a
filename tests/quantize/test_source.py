from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.errors import NotFoundError, UsageError
from zse.quantize.source import fingerprint, resolve_source

if TYPE_CHECKING:
    from pathlib import Path


def test_folder_is_known_by_its_own_name(llama_folder: Path) -> None:
    source = resolve_source(llama_folder)
    assert (source.name, source.revision) == ("little-llama", "")


def test_unknown_name_lists_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        resolve_source(tmp_path / "absent")
    assert "tiny" in caught.value.hint


def test_file_is_not_a_checkpoint(llama_folder: Path) -> None:
    with pytest.raises(UsageError, match="is a file"):
        resolve_source(llama_folder / "model.safetensors")


def test_folder_has_no_revisions(llama_folder: Path) -> None:
    with pytest.raises(UsageError, match="no revisions"):
        resolve_source(llama_folder, revision="main")


def test_fingerprint_changes_with_content_and_not_with_time(
    make_checkpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model")
    before = fingerprint(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes())
    (folder / "README.md").write_text("words")
    assert fingerprint(folder) == before
    (folder / "tokenizer.json").write_text("{}")
    assert fingerprint(folder) != before
