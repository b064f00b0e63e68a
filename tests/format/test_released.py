"""What any version wrote opens today, with the numbers, keys and lines that it had then."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import released_files

import zse
from zse.format import ZSEReader
from zse.format.schemes import Scheme
from zse.kernels.pack import KernelPack
from zse.serve.access.key_file import KeyFile
from zse.serve.access.keyring import Keyring
from zse.serve.audit.entry import decode_entry

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = sorted(p for p in released_files.RELEASED.iterdir() if not p.name.startswith("."))
SINCE = {"int3", "int2"}
"""Schemes that came after the newest kept version; the next one keeps them."""
each_version = pytest.mark.parametrize("kept", VERSIONS, ids=lambda path: path.name)


def samples_of(kept: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kept / released_files.SAMPLES).read_text())
    return found


def test_this_version_is_kept_and_the_files_are_small() -> None:
    assert zse.__version__ in {kept.name for kept in VERSIONS}, "run scripts/update_golden.py"
    assert sum(p.stat().st_size for p in released_files.RELEASED.rglob("*")) < 200_000


@each_version
def test_what_is_kept_has_not_changed_since(kept: Path) -> None:
    listed = [line.split("  ") for line in (kept / released_files.SUMS).read_text().splitlines()]
    found = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in released_files.files_of(kept)
    }
    assert {name: digest for digest, name in listed} == found


@each_version
def test_a_model_file_of_then_verifies_and_has_the_numbers_of_then(
    kept: Path, tmp_path: Path
) -> None:
    path = tmp_path / "small.zse"
    path.write_bytes(gzip.decompress((kept / "small.zse.gz").read_bytes()))
    with ZSEReader(path) as reader:
        reader.verify()
    assert released_files.numbers_of(path) == samples_of(kept)["numbers"]


def test_the_newest_version_keeps_every_scheme_that_it_had() -> None:
    newest = samples_of(released_files.RELEASED / zse.__version__)
    assert {*newest["schemes"], *SINCE} == {scheme.value for scheme in Scheme}


@each_version
def test_a_kernel_pack_of_then_is_read_and_verified(kept: Path) -> None:
    pack = KernelPack.open((kept / "sm_90.zkp").read_bytes())
    pack.verify()
    assert sorted(pack) == samples_of(kept)["pack"]


@each_version
def test_a_key_of_then_still_lets_in(kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "api_keys.json"
    path.write_bytes((kept / "api_keys.json").read_bytes())
    path.chmod(0o600)
    found = Keyring(key_file=KeyFile(path)).find(released_files.SECRET)
    assert found is not None
    assert {name: getattr(found, name) for name in samples_of(kept)["key"]} == samples_of(kept)[
        "key"
    ]


@each_version
def test_a_line_of_the_audit_log_of_then_is_read(kept: Path) -> None:
    (line,) = (kept / "audit.jsonl").read_bytes().splitlines()
    entry = decode_entry(line)
    assert (entry.api_key_name, entry.status_code, entry.total_tokens) == ("app", 200, 21)


def test_a_version_is_kept_once_and_then_left_alone(tmp_path: Path) -> None:
    folder = released_files.keep(tmp_path)
    assert folder == tmp_path / zse.__version__
    (folder / "audit.jsonl").write_text("other")
    assert released_files.keep(tmp_path) is None
    assert (folder / "audit.jsonl").read_text() == "other"
