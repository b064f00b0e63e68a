"""The reader: random access without copies, and views that outlive it."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import small_file
from broken_rules import breaks

from zse.errors import NotFoundError
from zse.format import ZSEReader
from zse.format.errors import Misuse, Rule
from zse.format.spec import ZSEHeader


def test_names_stand_in_file_order(small_path: Path) -> None:
    with ZSEReader(small_path) as reader:
        planned = [tensor.name for _, tensors in small_file.GROUPS for tensor in tensors]
        assert list(reader.names()) == planned


def test_a_header_that_was_parsed_before_is_not_parsed_again(
    small_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ZSEReader(small_path) as reader:
        first = reader.header
    monkeypatch.setattr(ZSEHeader, "from_bytes", None)
    copied = Path(shutil.copy(small_path, tmp_path / "other.zse"))
    with ZSEReader(copied) as reader:
        assert reader.header is first
    content = bytearray(copied.read_bytes())
    content[100] ^= 1  # in the header's JSON: the digest in the prefix still counts
    copied.write_bytes(content)
    with breaks(Rule.HEADER_CHECKSUM_MISMATCH):
        ZSEReader(copied)


def test_a_header_is_checked_once_for_files_of_one_size_and_anew_for_others(
    small_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ZSEReader(small_path) as reader:
        members = reader.tensors_of(reader.header.groups[0].name)
    short = tmp_path / "short.zse"
    short.write_bytes(small_path.read_bytes()[:-4096])
    for _ in range(2):  # what was refused is refused again
        with breaks(Rule.TRUNCATED_TENSOR):
            ZSEReader(short)
    monkeypatch.setattr("zse.format.model_file.validate", None)
    with ZSEReader(shutil.copy(small_path, tmp_path / "other.zse")) as reader:
        assert reader.tensors_of(reader.header.groups[0].name) == members


def test_every_part_holds_the_bytes_that_were_written(small_path: Path) -> None:
    with ZSEReader(small_path) as reader:
        reader.verify()
        for _, tensors in small_file.GROUPS:
            for tensor in tensors:
                for part in reader.entry(tensor.name).parts:
                    found = reader.part(tensor.name, part.role)
                    assert found == small_file.part_bytes(tensor, part.role)
                    assert found.readonly


def test_sections_come_back_as_they_were(small_path: Path) -> None:
    with ZSEReader(small_path) as reader:
        for name, data in small_file.SECTIONS.items():
            assert reader.has_section(name)
            assert bytes(reader.section(name)) == data
        assert not reader.has_section("special_tokens_map.json")


def test_groups_know_their_tensors(small_path: Path) -> None:
    with ZSEReader(small_path) as reader:
        for name, tensors in small_file.GROUPS:
            assert [t.name for t in reader.tensors_of(name)] == [t.name for t in tensors]


def test_unknown_names_say_what_there_is(small_path: Path) -> None:
    with ZSEReader(small_path) as reader:
        with breaks(Misuse.UNKNOWN_NAME, match="no tensor 'x'"):
            reader.entry("x")
        with breaks(Misuse.UNKNOWN_NAME, match=r"chat_template\.jinja"):
            reader.section("x")
        with breaks(Misuse.UNKNOWN_NAME, match="no group 'x'"):
            reader.group("x")
        with breaks(Misuse.UNKNOWN_NAME, match="has parts \\['data'\\], not scale"):
            reader.part("embed.weight", "scale")


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file .*absent\.zse"):
        ZSEReader(tmp_path / "absent.zse")
    with pytest.raises(NotFoundError, match="not a regular file"):
        ZSEReader(tmp_path)


def test_views_outlive_the_reader(small_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.zse"
    shutil.copy(small_path, path)
    with ZSEReader(path) as reader:
        view = reader.part("embed.weight", "data")
        tensors = reader.load_state_dict()
    path.unlink()
    del reader
    gc.collect()
    assert view == small_file.part_bytes(small_file.GROUPS[0][1][0], "data")
    assert tensors["final_norm.weight"].isfinite().all()


def test_a_file_put_in_its_place_is_not_read(small_path: Path, tmp_path: Path) -> None:
    path, other = tmp_path / "m.zse", tmp_path / "other.zse"
    shutil.copy(small_path, path)
    other.write_bytes(bytes(path.stat().st_size))
    with ZSEReader(path) as reader:
        other.replace(path)
        assert reader.part("embed.weight", "data") == small_file.part_bytes(
            small_file.GROUPS[0][1][0], "data"
        )
        shared = reader.share_file()
    with ZSEReader(small_path) as first:
        assert os.pread(shared.fd, 4, 0) == small_path.read_bytes()[:4]
        assert shared.opened_state[0] == first.size_bytes
    shared.close()
    shared.close()


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_reader_that_nobody_closed_leaves_no_descriptor(small_path: Path) -> None:
    reader = ZSEReader(small_path)
    before = num_descriptors()
    del reader
    gc.collect()
    assert num_descriptors() < before


def test_closed_reader_refuses_and_close_may_be_repeated(small_path: Path) -> None:
    reader = ZSEReader(small_path)
    reader.close()
    reader.close()
    for use in (
        lambda: reader.section("config.json"),
        lambda: reader.part("embed.weight", "data"),
        lambda: reader.release("embed"),
        reader.verify,
        reader.share_file,
    ):
        with breaks(Misuse.READER_CLOSED):
            use()
    assert reader.names()


def test_released_group_can_be_read_again(small_path: Path) -> None:
    with ZSEReader(small_path) as reader:
        before = bytes(reader.part("embed.weight", "data"))
        reader.release("embed")
        assert reader.part("embed.weight", "data") == before


def test_state_dict_holds_parts_of_quantized_tensors_by_role(small_path: Path) -> None:
    with ZSEReader(small_path) as reader:
        assert list(reader.load_state_dict()) == [
            "embed.weight",
            "layers.0.attn_norm.weight",
            "layers.0.qkv.weight.qweight",
            "layers.0.qkv.weight.scale_zero",
            "layers.0.o.weight.qweight",
            "layers.0.o.weight.absmax",
            "layers.0.up.weight.qweight",
            "layers.0.up.weight.exponent",
            "layers.0.gate.weight.qweight",
            "layers.0.gate.weight.signed_scale",
            "layers.0.k.weight.qweight",
            "layers.0.k.weight.scale_zero",
            "layers.0.v.weight.qweight",
            "layers.0.v.weight.scale_zero",
            "final_norm.weight",
            "lm_head.weight.qweight",
            "lm_head.weight.scale",
        ]


def test_layers_come_in_order_with_their_tensors(small_path: Path) -> None:
    with ZSEReader(small_path) as reader:
        layers = list(reader.iter_layers())
    assert [index for index, _ in layers] == [0]
    assert len(layers[0][1]) == 13


def test_reading_without_tensors_imports_no_torch_and_no_numpy(small_path: Path) -> None:
    script = f"""
import sys
from zse.format import ZSEReader
with ZSEReader({str(small_path)!r}) as reader:
    reader.verify()
    reader.part("embed.weight", "data")
print(sorted({{"torch", "numpy"}} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
