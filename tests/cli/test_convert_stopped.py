"""``zse convert ... -o s3://...`` that is told to end leaves nothing behind, wherever it is."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from s3_clients import default_client
from stopped_commands import SEND_PART, WRITE_PART, run_stopped

from zse.settings import load_settings
from zse.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


@pytest.mark.parametrize("point", [WRITE_PART, SEND_PART])
def test_sigterm_leaves_no_object_no_parts_and_no_file(
    s3_bucket: str, tmp_path: Path, point: str
) -> None:
    pytest.importorskip("torch")
    cache, temporary = tmp_path / "cache", tmp_path / "tmp"
    temporary.mkdir()
    result = run_stopped(
        ["convert", "tiny", "-o", f"s3://{s3_bucket}/tiny.zse"],
        point=point,
        part_bytes=1 << 20,
        environment={"ZSE_CACHE_DIR": str(cache), "TMPDIR": str(temporary)},
    )
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    assert list(open_store(f"s3://{s3_bucket}", load_settings()).list()) == []
    assert "Uploads" not in default_client().list_multipart_uploads(Bucket=s3_bucket)
    left = [path for folder in (cache, temporary) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in left if path != cache / "CACHEDIR.TAG"] == []
