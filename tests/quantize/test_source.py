from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.errors import NotFoundError, UsageError
from zse.quantize.source import fingerprint, resolve_source
from zse.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path


def test_folder_is_known_by_its_own_name(llama_folder: Path) -> None:
    source = resolve_source(llama_folder, load_settings())
    assert (source.name, source.revision) == ("little-llama", "")


def test_unknown_name_lists_what_is_accepted() -> None:
    with pytest.raises(NotFoundError) as caught:
        resolve_source("no-such-model", load_settings())
    assert "tiny" in caught.value.hint


def test_file_is_not_a_checkpoint(llama_folder: Path) -> None:
    with pytest.raises(UsageError, match="is one file of a checkpoint"):
        resolve_source(llama_folder / "model.safetensors", load_settings())


def test_folder_has_no_revisions(llama_folder: Path) -> None:
    with pytest.raises(UsageError, match="no revisions"):
        resolve_source(llama_folder, load_settings(), revision="main")


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


def test_fingerprint_changes_with_how_vectors_of_texts_are_made(
    make_checkpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model")
    found = {fingerprint(folder)}
    (folder / "1_Pooling").mkdir()
    for mode in ("mean_tokens", "cls_token"):
        (folder / "1_Pooling/config.json").write_text(f'{{"pooling_mode_{mode}": true}}')
        found.add(fingerprint(folder))
    assert len(found) == 3


def test_a_hub_address_is_a_hub_id_with_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetch(repository: str, revision: str | None, **_: object) -> Path:
        asked.append((repository, revision))
        return tmp_path

    monkeypatch.setattr("zse.quantize.source.fetch_snapshot", fetch)
    assert resolve_source("hf://owner/name@v1", load_settings()).name == "owner/name"
    resolve_source("hf://owner/name", load_settings(), revision="v2")
    resolve_source("hf://owner/name/", load_settings())
    assert asked == [("owner/name", "v1"), ("owner/name", "v2"), ("owner/name", None)]


@pytest.mark.parametrize(
    ("url", "revision", "words"),
    [
        ("hf://owner/name/model.safetensors", None, "is one object"),
        ("hf://owner/name@v1", "v2", "contradict"),
        ("hf://owner", None, "no repository"),
    ],
)
def test_a_hub_address_that_is_no_repository_is_refused(
    url: str, revision: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        resolve_source(url, load_settings(), revision=revision)
