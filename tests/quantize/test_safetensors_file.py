from __future__ import annotations

import errno
import json
import os
import struct
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from zse.errors import CheckpointError, UnsupportedModelError
from zse.quantize.safetensors_file import SafetensorsFile, fresh_memory

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, header: object, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_equal_what_safetensors_saved(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = torch.randn(7, 5).to(dtype)
    save_file({"a": weight, "b": weight[0].clone()}, tmp_path / "m.safetensors")
    with closing(SafetensorsFile(tmp_path / "m.safetensors")) as file:
        assert torch.equal(file.read_rows(file.tensors["a"], 2, 6), weight[2:6])
        assert torch.equal(file.read_rows(file.tensors["b"], 0, 5), weight[0])


def test_rows_are_read_into_the_memory_that_is_given(tmp_path: Path) -> None:
    weight, given = torch.randn(7, 5), []
    save_file({"a": weight}, tmp_path / "m.safetensors")

    def memory(length_bytes: int) -> torch.Tensor:
        given.append(fresh_memory(length_bytes))
        return given[-1]

    with closing(SafetensorsFile(tmp_path / "m.safetensors")) as file:
        file.memory = memory
        rows = file.read_rows(file.tensors["a"], 2, 6)
    assert torch.equal(rows, weight[2:6])
    assert [room.data_ptr() for room in given] == [rows.data_ptr()]


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[" * 100_000,
        b"[]",
        {"a": []},
        {"a": {**ENTRY, "data_offsets": [0, 800]}},
        {"a": {**ENTRY, "data_offsets": [8, 0]}},
        {"a": {**ENTRY, "data_offsets": [-8, 0]}},
        {"a": {**ENTRY, "data_offsets": [0]}},
        {"a": {**ENTRY, "shape": [3]}},
        {"a": {**ENTRY, "shape": [True, 2]}},
        {"a": {**ENTRY, "shape": ["2"]}},
    ],
)
def test_broken_header_is_a_checkpoint_error(tmp_path: Path, header: object) -> None:
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        SafetensorsFile(write(tmp_path / "m.safetensors", header, bytes(8)))


@pytest.mark.parametrize("raw", [b"", b"1234567", struct.pack("<Q", 2**62) + b"{}"])
def test_claimed_length_is_checked_before_it_is_read(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError):
        SafetensorsFile(path)


def test_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"a": ENTRY}, bytes(8))
    with closing(SafetensorsFile(path)) as file:
        path.write_bytes(path.read_bytes()[:-4])
        with pytest.raises(CheckpointError, match="cut short"):
            file.read_rows(file.tensors["a"], 0, 2)


def test_disk_that_fails_is_named_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = write(tmp_path / "m.safetensors", {"a": ENTRY}, bytes(8))
    with closing(SafetensorsFile(path)) as file:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(
            CheckpointError, match=r"cannot be read at byte \d+: Input/output error"
        ):
            file.read_rows(file.tensors["a"], 0, 2)


def test_type_that_cannot_be_converted_is_named(tmp_path: Path) -> None:
    entry = {"dtype": "F8_E5M2", "shape": [8], "data_offsets": [0, 8]}
    path = write(tmp_path / "m.safetensors", {"a": entry}, bytes(8))
    with (
        closing(SafetensorsFile(path)) as file,
        pytest.raises(UnsupportedModelError, match="F8_E5M2"),
    ):
        file.read_rows(file.tensors["a"], 0, 1)
