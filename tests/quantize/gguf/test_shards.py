"""A GGUF model that was split is one model, wherever its files lie."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import gguf
import pytest
from faulty_s3 import faulty_s3
from gguf_files import write_gguf

from zse.errors import CheckpointError
from zse.models.resolve import RemoteFile, RemoteGguf, resolve_model
from zse.quantize.convert import convert_model
from zse.quantize.gguf import weights
from zse.quantize.gguf.documents import read_header

if TYPE_CHECKING:
    from pathlib import Path

    from faulty_s3 import FaultyS3

    from tests.quantize.conftest import MakeCheckpoint

__all__ = ["faulty_s3"]


def split(source: Path, folder: Path, num_files: int = 2, **changes: int) -> list[Path]:
    """Write a GGUF file as several, as ``llama-gguf-split`` does; ``changes`` are of the last."""
    reader = gguf.GGUFReader(source)
    folder.mkdir()
    paths = []
    for index in range(num_files):
        path = folder / f"m-{index + 1:05d}-of-{num_files:05d}.gguf"
        writer = gguf.GGUFWriter(path, "llama" if index == 0 else "")
        facts = {"no": index, "count": num_files, "tensors_count": len(reader.tensors)}
        facts |= changes if index == num_files - 1 else {}
        if index == 0:
            for field in reader.fields.values():
                if not field.name.startswith(("GGUF.", "general.architecture")):
                    writer.add_key_value(field.name, field.contents(), field.types[0])
        writer.add_uint16("split.no", facts["no"])
        writer.add_uint16("split.count", facts["count"])
        writer.add_int32("split.tensors.count", facts["tensors_count"])
        for tensor in reader.tensors[index::num_files]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


@pytest.fixture
def whole(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> Path:
    folder = make_checkpoint(tmp_path / "hf", "llama", num_hidden_layers=1)
    return write_gguf(tmp_path / "m.gguf", folder, "llama", "Q4_0")


def test_files_of_a_split_model_come_out_as_the_whole_one(whole: Path, tmp_path: Path) -> None:
    paths = split(whole, tmp_path / "parts", 3)
    expected = convert_model(whole, tmp_path / "a.zse", tokenizer=tmp_path / "hf")
    for number, path in enumerate((paths[0], paths[2])):
        found = convert_model(path, tmp_path / f"{number}.zse", tokenizer=tmp_path / "hf")
        assert found.tensors == expected.tensors
        assert found.size_bytes == expected.size_bytes
    assert len(read_header(paths[1]).tensors) == len(read_header(whole).tensors)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"no": 0}, "by its name it is file 1"),
        ({"count": 3}, "by its name it is file 1 of 2"),
    ],
)
def test_files_that_are_not_of_one_model_are_refused(
    whole: Path, tmp_path: Path, changes: dict[str, int], words: str
) -> None:
    paths = split(whole, tmp_path / "parts", **changes)
    with pytest.raises(CheckpointError, match=words):
        read_header(paths[0])


def test_a_missing_file_and_a_name_that_was_changed_are_told(whole: Path, tmp_path: Path) -> None:
    paths = split(whole, tmp_path / "parts")
    alone = paths[0].rename(tmp_path / "alone.gguf")
    with pytest.raises(CheckpointError, match="is one of 2 files of a model"):
        read_header(alone)
    with pytest.raises(CheckpointError, match=r"1 of 2 files of m are missing.*m-00001-of-00002"):
        read_header(paths[1])


def test_a_tensor_in_two_files_is_refused(whole: Path, tmp_path: Path) -> None:
    first, second = split(whole, tmp_path / "parts")
    others = split(whole, tmp_path / "more", 2)
    data = others[0].read_bytes().replace(b"split.no\x02\0\0\0\0\0", b"split.no\x02\0\0\0\1\0")
    second.write_bytes(data)
    with pytest.raises(CheckpointError, match="is in both"):
        read_header(first)


def test_files_behind_an_address_are_fetched_once_and_converted(
    faulty_s3: FaultyS3, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    paths = split(whole, tmp_path / "parts")
    for path in paths:
        faulty_s3.objects[f"/bucket/models/{path.name}"] = (path.read_bytes(), {})
    address = f"s3://bucket/models/{paths[0].name}"
    here = convert_model(paths[0], tmp_path / "a.zse", tokenizer=tmp_path / "hf")
    there = convert_model(address, tmp_path / "b.zse", tokenizer=tmp_path / "hf")
    assert there.sha256 == here.sha256
    faulty_s3.requests.clear()
    convert_model(address, tmp_path / "c.zse", "int8", tokenizer=tmp_path / "hf")
    assert faulty_s3.seen("^GET") == []


def test_an_object_that_is_no_gguf_is_refused_by_its_bytes(
    faulty_s3: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    faulty_s3.objects["/bucket/m.gguf"] = (b"<html>no such model</html>", {})
    with pytest.raises(CheckpointError, match="does not begin with GGUF"):
        convert_model("s3://bucket/m.gguf", tmp_path / "m.zse")


def test_a_gguf_file_of_a_repository_is_named_with_or_without_a_scheme() -> None:
    bare = resolve_model("owner/name-GGUF/folder/m-Q4_K_M.gguf")
    assert isinstance(bare, RemoteGguf)
    assert bare == resolve_model("hf://owner/name-GGUF/folder/m-Q4_K_M.gguf")
    assert bare.location.repository == "owner/name-GGUF"
    assert isinstance(resolve_model("https://models.example.com/m.gguf"), RemoteGguf)
    assert isinstance(resolve_model("https://models.example.com/m.zse"), RemoteFile)


def test_a_file_that_cannot_be_opened_is_named_and_leaves_no_other_open(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = split(whole, tmp_path / "split")
    opened: list[int] = []
    usual = os.open

    def few(path: Path, *how: int) -> int:
        if path == second:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(usual(path, *how))
        return opened[-1]

    monkeypatch.setattr(weights.os, "open", few)
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.gguf cannot be opened: Too many"):
        weights.GgufFile(first)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
