from __future__ import annotations

import errno
import gzip
import hashlib
from pathlib import Path

import pytest
import zstandard

from zse.errors import DiskFullError
from zse.oci.layout.layer import Compression, write_layer
from zse.oci.layout.tar import Entry, file_of_bytes

ENTRIES = [file_of_bytes("a", b"A" * 5000), file_of_bytes("b/c", b"C" * 300_000)]


def unpack(compression: Compression, data: bytes) -> bytes:
    if compression is Compression.GZIP:
        return gzip.decompress(data)
    if compression is Compression.ZSTD:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


@pytest.mark.parametrize("compression", list(Compression))
def test_digest_names_the_file_and_diff_id_its_content(tmp_path, compression):
    layer = write_layer(ENTRIES, tmp_path, compression=compression)
    stored = (tmp_path / layer.digest.removeprefix("sha256:")).read_bytes()
    assert layer.digest == f"sha256:{hashlib.sha256(stored).hexdigest()}"
    assert layer.size_bytes == len(stored)
    content = unpack(compression, stored)
    assert layer.diff_id == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_diff_id_is_the_same_for_every_compression(tmp_path):
    assert len({write_layer(ENTRIES, tmp_path, compression=c).diff_id for c in Compression}) == 1


def test_gzip_header_holds_no_time_and_no_system(tmp_path):
    layer = write_layer(ENTRIES, tmp_path, compression=Compression.GZIP)
    stored = (tmp_path / layer.digest.removeprefix("sha256:")).read_bytes()
    assert stored[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


def test_media_types_are_those_of_the_specification():
    assert [c.media_type.rpartition("tar")[2] for c in Compression] == ["+zstd", "+gzip", ""]


def broken_content():
    raise ZeroDivisionError


def test_failed_layer_leaves_nothing_behind(tmp_path):
    with pytest.raises(ZeroDivisionError):
        write_layer([Entry(path="a", size_bytes=1, open=broken_content)], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_its_own_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(DiskFullError, match="no room"):
        write_layer(ENTRIES, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_to_the_bytes_of_all_files(tmp_path):
    told: list[tuple[str, int, int]] = []
    files = [file_of_bytes("a", b"x" * 3_000_000), file_of_bytes("b", b"y" * 1_000_000)]
    write_layer(files, tmp_path, comment="torch", progress=lambda *words: told.append(words))
    done = [done_bytes for _, done_bytes, _ in told]
    assert {(word, total) for word, _, total in told} == {("torch", 4_000_000)}
    assert done == sorted(done)
    assert 0 < done[0] < done[-1] == 4_000_000
