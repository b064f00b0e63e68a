"""What the word MODEL means, everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from zse.errors import NotFoundError, UsageError
from zse.models.resolve import (
    Builtin,
    HubRepository,
    LocalFile,
    LocalFolder,
    NamedModel,
    RemoteFile,
    resolve_model,
)
from zse.store import parse_location


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, a checkpoint and a folder called as the built-in is."""
    (tmp_path / "qwen.zse").write_bytes(b"")
    (tmp_path / "ck" / "llama").mkdir(parents=True)
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("tiny", Builtin(name="tiny")),
        ("./tiny", LocalFolder(path=Path("tiny"))),
        ("qwen.zse", LocalFile(path=Path("qwen.zse"))),
        ("ck/llama", LocalFolder(path=Path("ck/llama"))),
        ("owner/name", HubRepository(repository="owner/name")),
        ("hf://owner/name", HubRepository(repository="owner/name")),
        ("hf://owner/name@v1/", HubRepository(repository="owner/name", revision="v1")),
        ("https://huggingface.co/owner/name", HubRepository(repository="owner/name")),
        ("s3://bucket/a.zse", RemoteFile(location=parse_location("s3://bucket/a.zse"))),
        ("hf://o/n@v1/a.zse", RemoteFile(location=parse_location("hf://o/n@v1/a.zse"))),
        ("https://host/a.zse?k=1", RemoteFile(location=parse_location("https://host/a.zse?k=1"))),
    ],
)
def test_every_form_of_a_model_has_one_meaning(text: str, meaning: NamedModel) -> None:
    assert resolve_model(text) == meaning


@pytest.mark.parametrize(
    ("text", "found", "hint"),
    [
        ("qwenn.zse", "there is no file qwenn.zse", "Did you mean qwen.zse?"),
        ("ck/lama", "there is no file ck/lama", "Did you mean ck/llama?"),
        ("ck/doesnotexist", "there is no file ck/doesnotexist", "Check the path."),
        ("ck/doesnotexist", "there is no file ck/doesnotexist", "write hf://ck/doesnotexist."),
        ("ck/m.zse", "there is no file ck/m.zse", "zse convert MODEL -o ck/m.zse"),
        ("other/m.zse", "there is no file other/m.zse", "There is no folder other either"),
        ("./absent", "there is no file absent", "holds qwen.zse."),
        ("a/b/c", "there is no file a/b/c", "There is no folder a/b either"),
        ("qwen", "there is no model 'qwen'", "Did you mean qwen.zse?"),
        ("tinny", "there is no model 'tinny'", "Did you mean tiny?"),
        ("nothing:7b", "there is no model 'nothing:7b'", "OWNER/NAME on the hub"),
    ],
)
def test_a_name_of_nothing_is_called_what_it_is_and_leads_on(
    text: str, found: str, hint: str
) -> None:
    with pytest.raises(NotFoundError) as caught:
        resolve_model(text)
    assert caught.value.message == found
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["s3://bucket/folder/", "s3://bucket", "hf://owner/name/folder/"])
def test_a_group_of_objects_is_no_model(text: str) -> None:
    with pytest.raises(UsageError, match="names a folder") as caught:
        resolve_model(text)
    assert "zse ls" in caught.value.hint


def test_a_path_object_made_of_an_address_is_called_that() -> None:
    with pytest.raises(UsageError, match="lacks a slash"):
        resolve_model(Path("s3://models/x.zse"))


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen2.5-14B-Instruct", "Qwen/Qwen2.5-14B-Instruct"),
    ],
)
def test_a_name_without_its_owner_is_told_the_whole_one(asked: str, meant: str) -> None:
    with pytest.raises(NotFoundError) as told:
        resolve_model(asked)
    assert told.value.hint == f"Did you mean {meant}?"
