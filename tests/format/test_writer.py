"""The writer: stages, order, temporary names, resume after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small_file
from broken_rules import breaks

from zse.errors import DiskFullError, NotFoundError
from zse.format import Scheme, ZSEReader, ZSEWriter, partial
from zse.format.errors import Misuse, Rule
from zse.format.layout import PlannedTensor

PLAIN = PlannedTensor(name="a", scheme=Scheme.FP32, shape=(4, 2))


def new_writer(path: Path, **options: Any) -> ZSEWriter:
    return ZSEWriter(
        path,
        architecture="llama",
        model_config=small_file.MODEL_CONFIG,
        provenance=small_file.PROVENANCE,
        **options,
    )


def start(writer: ZSEWriter) -> ZSEWriter:
    for name, data in small_file.SECTIONS.items():
        writer.add_section(name, data)
    writer.plan(small_file.GROUPS)
    return writer


def fail_before(group: str, path: Path, **options: Any) -> None:
    """Write up to a group, one row further, and fail there."""
    with pytest.raises(RuntimeError), start(new_writer(path, **options)) as writer:
        _fill_and_raise(writer, group)


def _fill_and_raise(writer: ZSEWriter, group: str) -> None:
    small_file.fill(writer, stop_before=group)
    writer.write_part("final_norm.weight", "data", bytes(4))
    raise RuntimeError


def write_plain(path: Path, *chunks: tuple[int, int]) -> None:
    """Write a file of one [4, 2] float32 tensor from chunks of (bytes, first row)."""
    with new_writer(path) as writer:
        writer.plan([("embed", [PLAIN])])
        for size_bytes, row_offset in chunks:
            writer.write_part("a", "data", bytes(size_bytes), row_offset=row_offset)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_only_the_final_name_is_left_after_close(tmp_path: Path) -> None:
    small_file.write(tmp_path / "m.zse")
    assert files_in(tmp_path) == ["m.zse"]


def test_final_name_is_absent_until_close(tmp_path: Path) -> None:
    with start(new_writer(tmp_path / "m.zse")) as writer:
        small_file.fill(writer)
        assert not (tmp_path / "m.zse").exists()
    assert (tmp_path / "m.zse").exists()


def test_exception_removes_every_temporary_file(tmp_path: Path) -> None:
    fail_before("final", tmp_path / "m.zse")
    assert files_in(tmp_path) == []


def test_leaving_the_block_with_a_part_missing_is_an_error_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with (
        breaks(Misuse.WRITER_STAGE, match=r"final_norm\.weight/data has 0 of 128 rows"),
        start(new_writer(tmp_path / "m.zse")) as writer,
    ):
        small_file.fill(writer, stop_before="final")
    assert files_in(tmp_path) == []


def test_existing_file_is_replaced_only_by_a_finished_one(tmp_path: Path) -> None:
    path = tmp_path / "m.zse"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), start(new_writer(path)):
        raise RuntimeError
    assert path.read_bytes() == b"old"
    small_file.write(path)
    assert path.read_bytes() != b"old"


def test_calls_out_of_stage_name_both_stages(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "m.zse")
    with breaks(Misuse.WRITER_STAGE, match="belongs to stage tensors, but the stage is sec"):
        writer.write_part("a", "data", b"")
    writer.plan([("embed", [PLAIN])])
    with breaks(Misuse.WRITER_STAGE, match="belongs to stage sections, but the stage is tens"):
        writer.add_section("x", b"")
    writer.write_part("a", "data", bytes(32))
    writer.close()
    with breaks(Misuse.WRITER_STAGE, match="the stage is closed"):
        writer.close()


def test_parts_out_of_order_are_refused(tmp_path: Path) -> None:
    with (
        breaks(Misuse.WRITER_STAGE, match=r"expected embed\.weight/data"),
        start(new_writer(tmp_path / "m.zse")) as writer,
    ):
        writer.write_part("final_norm.weight", "data", b"")


@pytest.mark.parametrize(
    "chunk", [(7, 0), (8, 1), (40, 0)], ids=["half a row", "a gap", "too many rows"]
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, chunk: tuple[int, int]) -> None:
    with breaks(Misuse.WRITER_STAGE, match="4 rows in all"):
        write_plain(tmp_path / "m.zse", chunk)


def test_part_after_the_last_one_is_refused(tmp_path: Path) -> None:
    with breaks(Misuse.WRITER_STAGE, match="every planned part"):
        write_plain(tmp_path / "m.zse", (16, 0), (16, 2), (32, 0))


def test_part_written_in_chunks_gives_the_same_bytes(tmp_path: Path, small_path: Path) -> None:
    with start(new_writer(tmp_path / "m.zse")) as writer:
        embedding = small_file.GROUPS[0][1][0]
        data = small_file.part_bytes(embedding, "data")
        row_bytes = len(data) // 12
        for row in (0, 5, 11):
            stop = {0: 5, 5: 11, 11: 12}[row]
            piece = data[row * row_bytes : stop * row_bytes]
            writer.write_part(embedding.name, "data", memoryview(piece), row_offset=row)
        for _, tensors in small_file.GROUPS[1:]:
            for tensor in tensors:
                for part in writer_parts(tensor):
                    writer.write_part(tensor.name, part, small_file.part_bytes(tensor, part))
    assert (tmp_path / "m.zse").read_bytes() == small_path.read_bytes()


def writer_parts(tensor: PlannedTensor) -> list[str]:
    from zse.format.schemes import parts_for

    return [role for role, _, _ in parts_for(tensor.scheme, tensor.shape, tensor.group_size)]


def test_unsafe_and_duplicate_names_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with new_writer(tmp_path / "m.zse") as writer:
        with breaks(Rule.UNSAFE_SECTION_NAME):
            writer.add_section("../x", b"")
        writer.plan([("embed", [PLAIN])])
        writer.write_part("a", "data", bytes(32))
    slash = PlannedTensor(name="a/b", scheme=Scheme.FP32, shape=(1,))
    for groups, rule in (
        ([("embed", [PLAIN, PLAIN])], Rule.DUPLICATE_NAME),
        ([("embed", [PLAIN]), ("embed", [])], Rule.DUPLICATE_NAME),
        ([("embed", [])], Rule.EMPTY_GROUP),
        ([("embed", [slash])], Rule.UNSAFE_TENSOR_NAME),
    ):
        with breaks(rule), new_writer(tmp_path / "n.zse") as writer:
            writer.plan(groups)
    assert files_in(tmp_path) == ["m.zse"]


def test_file_without_tensors_and_sections_is_readable(tmp_path: Path) -> None:
    with new_writer(tmp_path / "m.zse") as writer:
        writer.plan([])
    with ZSEReader(tmp_path / "m.zse") as reader:
        reader.verify()
        assert reader.names() == ()


def test_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="absent"):
        new_writer(tmp_path / "absent" / "m.zse")


def test_second_writer_of_one_file_is_refused(tmp_path: Path) -> None:
    with start(new_writer(tmp_path / "m.zse")) as writer:
        with breaks(Misuse.WRITER_BUSY):
            new_writer(tmp_path / "m.zse")
        small_file.fill(writer)


@pytest.mark.parametrize("ending", ["published", "abandoned"])
def test_a_writer_whose_forerunner_ends_as_it_begins_leaves_the_finished_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    path = tmp_path / "small.zse"
    first = partial.PartialFile(path)
    first.write(b"finished")
    first.write_journal("plan", [])
    lock = partial.lock_alone

    def lock_after_the_first_ended(fd: int, locked: Path) -> None:
        monkeypatch.setattr(partial, "lock_alone", lock)
        if ending == "published":
            first.publish()
        else:
            first.abandon(keep=False)
        lock(fd, locked)

    monkeypatch.setattr(partial, "lock_alone", lock_after_the_first_ended)
    second = partial.PartialFile(path)
    second.restart_at(0)
    assert not path.exists() or path.read_bytes() == b"finished"
    second.write(b"by the second")
    second.write_journal("plan", [])
    second.publish()
    assert path.read_bytes() == b"by the second"


def test_disk_without_room_is_found_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(DiskFullError, match="needs 2109440 more bytes, but 100 are free"):
        start(new_writer(tmp_path / "m.zse")).__enter__()


def test_disk_that_fills_up_is_a_clear_error(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "m.zse", resume=True)
    full = os.open("/dev/full", os.O_WRONLY)
    writer.plan([("embed", [PLAIN])])
    os.dup2(full, writer._file.fd)
    os.close(full)
    with pytest.raises(DiskFullError, match="No space left on device"):
        writer.write_part("a", "data", bytes(32))
    writer.abort()


def test_failed_run_that_may_resume_keeps_its_finished_groups(
    tmp_path: Path, small_path: Path
) -> None:
    path = tmp_path / "m.zse"
    fail_before("final", path, resume=True)
    assert files_in(tmp_path) == ["m.zse.partial", "m.zse.partial.json"]
    with start(new_writer(path, resume=True)) as writer:
        assert writer.completed_groups == {"embed", "layers.0"}
        small_file.fill(writer)
    assert path.read_bytes() == small_path.read_bytes()
    assert files_in(tmp_path) == ["m.zse"]


@pytest.mark.parametrize("group", ["embed", "layers.0", "final", ""], ids=lambda g: g or "the end")
def test_killed_run_resumes_to_the_same_bytes(tmp_path: Path, small_path: Path, group: str) -> None:
    path = tmp_path / "m.zse"
    script = f"""
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{str(Path(small_file.__file__).parent)!r}]
import small_file
from zse.format import ZSEWriter
writer = ZSEWriter({str(path)!r}, architecture="llama", model_config=small_file.MODEL_CONFIG,
                   provenance=small_file.PROVENANCE)
for name, data in small_file.SECTIONS.items():
    writer.add_section(name, data)
writer.plan(small_file.GROUPS)
small_file.fill(writer, stop_before={group!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script], check=False, cwd=Path.cwd())
    assert killed.returncode == -signal.SIGKILL
    assert not path.exists()
    names = [name for name, _ in small_file.GROUPS]
    done = names[: names.index(group)] if group else names
    with start(new_writer(path, resume=True)) as writer:
        assert writer.completed_groups == set(done)
        small_file.fill(writer)
    assert path.read_bytes() == small_path.read_bytes()


def test_damaged_partial_file_is_written_again_from_the_damage(
    tmp_path: Path, small_path: Path
) -> None:
    path = tmp_path / "m.zse"
    partial = tmp_path / "m.zse.partial"
    fail_before("final", path, resume=True)
    data = bytearray(partial.read_bytes())
    with ZSEReader(small_path) as reader:
        data[reader.entry("layers.0.qkv.weight").parts[0].offset_bytes] ^= 1
    partial.write_bytes(data)
    with start(new_writer(path, resume=True)) as writer:
        assert writer.completed_groups == {"embed"}
        small_file.fill(writer)
    assert path.read_bytes() == small_path.read_bytes()


@pytest.mark.parametrize(
    "journal", [b"", b"[]", b'{"plan":1}', b'{"plan":"x","groups":[["a","b"]]}']
)
def test_journal_of_another_plan_is_not_believed(
    tmp_path: Path, small_path: Path, journal: bytes
) -> None:
    path = tmp_path / "m.zse"
    (tmp_path / "m.zse.partial").write_bytes(b"x" * 5_000_000)
    (tmp_path / "m.zse.partial.json").write_bytes(journal)
    with start(new_writer(path, resume=True)) as writer:
        assert writer.completed_groups == set()
        small_file.fill(writer)
    assert path.read_bytes() == small_path.read_bytes()


@pytest.mark.parametrize("chunk_rows", [7, 2100, 5000])
def test_chunks_of_any_size_reach_the_disk_as_whole_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    rows, row_bytes = 5000, 1024
    tensor = PlannedTensor(name="a", scheme=Scheme.FP32, shape=(rows, row_bytes // 4))
    data = bytes(range(256)) * (rows * row_bytes // 256)
    written: list[tuple[int, int]] = []
    write = partial.write_at

    def record(fd: int, data: bytes | bytearray, offset_bytes: int) -> None:
        if data:
            written.append((offset_bytes, len(data)))
        write(fd, data, offset_bytes)

    monkeypatch.setattr(partial, "write_at", record)
    with new_writer(tmp_path / "m.zse") as writer:
        writer.plan([("embed", [tensor])])
        for first in range(0, rows, chunk_rows):
            some = data[first * row_bytes : (first + chunk_rows) * row_bytes]
            writer.write_part("a", "data", some, row_offset=first)
    *whole, _rest, _header = written
    assert len(whole) >= rows * row_bytes // partial._HUGE_PAGE_BYTES
    assert all(end % partial._HUGE_PAGE_BYTES == 0 for end in map(sum, whole))
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert reader.part("a", "data") == data
        reader.verify()


def test_bytes_are_the_callers_again_when_they_are_written(tmp_path: Path) -> None:
    rows, row_bytes = 3, 4 << 20  # long enough for the digest to be counted by another thread
    tensor = PlannedTensor(name="a", scheme=Scheme.FP32, shape=(rows, row_bytes // 4))
    buffer = bytearray(row_bytes)
    with new_writer(tmp_path / "m.zse") as writer:
        writer.plan([("embed", [tensor])])
        for row in range(rows):
            buffer[:] = bytes([row]) * row_bytes
            writer.write_part("a", "data", buffer, row_offset=row)
            buffer[:] = bytes([255]) * row_bytes
    with ZSEReader(tmp_path / "m.zse") as reader:
        reader.verify()
        assert reader.part("a", "data")[::row_bytes] == bytes(range(rows))
