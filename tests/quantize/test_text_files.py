"""A model is converted with a tokenizer that works, or somebody says that it needs none."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from little_tokenizer import write_tokenizer

from zse.errors import CheckpointError, NotFoundError, UsageError
from zse.format.reader import ZSEReader
from zse.quantize.convert import ConversionProgress, convert_model
from zse.quantize.text_files import TextOptions, TokenizerMissingError, default_template

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture
def bare(llama_folder: Path, tmp_path: Path) -> Path:
    """What ``model.save_pretrained`` leaves when nobody saves the tokenizer."""
    folder = tmp_path / "bare"
    shutil.copytree(llama_folder, folder)
    (folder / "tokenizer.json").unlink()
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def test_a_checkpoint_without_a_tokenizer_is_refused_before_anything_is_written(
    bare: Path, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerMissingError, match=r"holds no tokenizer\.json") as caught:
        convert_model(bare, tmp_path / "m.zse")
    assert "--tokenizer FOLDER" in caught.value.hint
    assert not list(tmp_path.glob("m.zse*"))


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
def test_a_tokenizer_in_another_form_is_refused_by_name(
    bare: Path, tmp_path: Path, name: str
) -> None:
    (bare / name).write_bytes(b"\n")
    with pytest.raises(TokenizerMissingError, match=f"as {name} only") as caught:
        convert_model(bare, tmp_path / "m.zse")
    assert "AutoTokenizer" in caught.value.hint


def test_without_one_on_purpose_it_is_said_and_the_file_has_none(
    bare: Path, tmp_path: Path
) -> None:
    report = convert_model(bare, tmp_path / "m.zse", allow_no_tokenizer=True)
    assert "no tokenizer" in " ".join(report.warnings)
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert not reader.has_section("tokenizer.json")


def test_the_tokenizer_of_another_folder_is_taken_with_its_template(
    bare: Path, base: Path, tmp_path: Path
) -> None:
    report = convert_model(bare, tmp_path / "m.zse", tokenizer=base)
    assert report.warnings == ()
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert bytes(reader.section("tokenizer.json")) == (base / "tokenizer.json").read_bytes()
        assert bytes(reader.section("chat_template.jinja")).decode() == TEMPLATE
        assert reader.header.provenance["tokenizer"] == "base"


def test_the_named_tokenizer_wins_over_the_checkpoints_own(
    llama_folder: Path, base: Path, tmp_path: Path
) -> None:
    write_tokenizer(base, words=5)
    convert_model(llama_folder, tmp_path / "m.zse", tokenizer=base)
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert bytes(reader.section("tokenizer.json")) == (base / "tokenizer.json").read_bytes()


def test_a_missing_template_is_said_and_one_can_be_given(
    llama_folder: Path, tmp_path: Path
) -> None:
    report = convert_model(llama_folder, tmp_path / "a.zse")
    assert ["--chat-template FILE" in words for words in report.warnings] == [True]
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    report = convert_model(llama_folder, tmp_path / "b.zse", chat_template=tmp_path / "t.jinja")
    assert report.warnings == ()
    with ZSEReader(tmp_path / "b.zse") as reader:
        assert bytes(reader.section("chat_template.jinja")).decode() == TEMPLATE
        assert reader.header.provenance["chat_template"] == "t.jinja"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{% for m in messages %}", "does not compile"),
        ("{{ messages[0].text.absent }}", "failed"),
        (
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            "fuel",
        ),
    ],
)
def test_a_template_that_does_not_work_is_refused_when_given_and_told_when_found(
    llama_folder: Path, tmp_path: Path, source: str, found: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(llama_folder, folder)
    (folder / "chat_template.jinja").write_text(source)
    with pytest.raises(UsageError, match=f"chat_template.jinja: .*{found}"):
        convert_model(
            llama_folder, tmp_path / "a.zse", chat_template=folder / "chat_template.jinja"
        )
    assert not list(tmp_path.glob("a.zse*"))
    (warning,) = convert_model(folder, tmp_path / "b.zse").warnings
    assert found in warning
    assert "cannot be used" in warning


def test_a_tokenizer_with_more_tokens_than_the_model_is_told(
    bare: Path, base: Path, tmp_path: Path
) -> None:
    write_tokenizer(base, words=97)
    (warning,) = convert_model(bare, tmp_path / "m.zse", tokenizer=base).warnings
    assert "has 97 tokens, the model 96" in warning


def test_a_resumed_conversion_takes_nothing_of_one_with_another_tokenizer(
    llama_folder: Path, base: Path, tmp_path: Path
) -> None:
    def interrupt(progress: ConversionProgress) -> None:
        if progress.done_bytes > progress.total_bytes / 2:
            raise KeyboardInterrupt

    out = tmp_path / "m.zse"
    with pytest.raises(KeyboardInterrupt):
        convert_model(llama_folder, out, resume=True, progress=interrupt)
    assert out.with_name("m.zse.partial").exists()
    assert convert_model(llama_folder, out, resume=True, tokenizer=base).resumed_groups == 0


def test_options_that_name_nothing_usable_are_errors(tmp_path: Path, base: Path) -> None:
    (tmp_path / "empty.jinja").write_text(" \n")
    (tmp_path / "latin.jinja").write_bytes(b"\xff{{ messages }}")
    with pytest.raises(NotFoundError, match="no folder"):
        TextOptions(tokenizer=tmp_path / "absent")
    with pytest.raises(TokenizerMissingError):
        TextOptions(tokenizer=tmp_path)
    with pytest.raises(NotFoundError, match="no file"):
        TextOptions(chat_template=tmp_path / "absent")
    for name in ("empty.jinja", "latin.jinja"):
        with pytest.raises(UsageError, match=name):
            TextOptions(chat_template=tmp_path / name)
    with pytest.raises(UsageError, match="contradict"):
        TextOptions(tokenizer=base, allow_no_tokenizer=True)


def test_of_several_templates_the_default_one_is_taken_whatever_stands_beside_it() -> None:
    listed = [7, {"name": ["x"]}, {"name": "default", "template": TEMPLATE}, None]
    config = json.dumps({"chat_template": listed}).encode()
    assert default_template({"tokenizer_config.json": config}) == TEMPLATE
    assert default_template({"tokenizer_config.json": b'{"chat_template": [1]}'}) is None


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("chat_template.jinja", b"\xff"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b"[" * 100_000),
        ("chat_template.json", b"[]"),
    ],
)
def test_a_template_that_cannot_be_read_is_an_error_that_names_the_file(
    name: str, data: bytes
) -> None:
    with pytest.raises(CheckpointError, match=name):
        default_template({name: data})
