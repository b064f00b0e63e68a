"""Tuning tables: what is shipped, what the user measured, and broken files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from broken_rules import breaks

from zse.kernels import tuning
from zse.kernels.catalog import all_variants
from zse.kernels.errors import KernelRule
from zse.kernels.tuning import Tuning, read_tuning, slug

if TYPE_CHECKING:
    from pathlib import Path

TABLES = {
    "linear.int4.a8.rows1": {
        "3584x37888": {"variant": "linear.gemv[BN=16]w4s1", "splits": 1},
        "3584x3584": {"variant": "linear.gemv[BN=8]w4s1", "splits": 4},
    }
}


def write(folder: Path, document: Any, name: str = "nvidia-h200.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")
    return tmp_path / "shipped"


def test_a_gpu_without_a_table_has_no_choices(shipped: Path, tmp_path: Path) -> None:
    loaded = Tuning.load("NVIDIA Unknown", cache_dir=tmp_path)
    assert loaded.lookup("linear.int4.a8.rows1", "3584x37888") is None


def test_the_users_table_wins_entry_by_entry(shipped: Path, tmp_path: Path) -> None:
    write(shipped, {"device": "NVIDIA H200", "tables": TABLES})
    own = {"linear.int4.a8.rows1": {"3584x3584": {"variant": "other", "splits": 2}}}
    write(tmp_path / "cache" / "tuned", {"device": "NVIDIA H200", "tables": own})
    loaded = Tuning.load("NVIDIA H200", cache_dir=tmp_path / "cache")
    assert loaded.lookup("linear.int4.a8.rows1", "3584x3584") == {"variant": "other", "splits": 2}
    assert loaded.lookup("linear.int4.a8.rows1", "3584x37888") == {
        "variant": "linear.gemv[BN=16]w4s1",
        "splits": 1,
    }
    assert Tuning.load("NVIDIA H200").tables == TABLES


def test_a_table_written_and_read_is_the_same(tmp_path: Path) -> None:
    made = Tuning(device_name="NVIDIA H200", tables=TABLES)
    path = tmp_path / "t.json"
    path.write_bytes(made.to_json())
    assert read_tuning(path, "NVIDIA H200").tables == TABLES
    assert b'   "3584x3584": {"splits": 4, "variant": "linear.gemv[BN=8]w4s1"},\n' in made.to_json()
    assert json.loads(Tuning(device_name="x", tables={}).to_json()) == {"device": "x", "tables": {}}


def test_names_of_gpus_become_names_of_files() -> None:
    assert slug("NVIDIA H200") == "nvidia-h200"
    assert slug("NVIDIA RTX 6000 Ada/Gen..") == "nvidia-rtx-6000-ada-gen"
    assert slug("../..") == "unknown"


BROKEN: dict[str, Any] = {
    "no JSON": "{",
    "nested": "[" * 100_000,
    "a list": [],
    "more fields": {"device": "NVIDIA H200", "tables": {}, "more": 1},
    "another GPU": {"device": "NVIDIA L4", "tables": {}},
    "tables a list": {"device": "NVIDIA H200", "tables": []},
    "table no name": {"device": "NVIDIA H200", "tables": {"../x": {}}},
    "table a list": {"device": "NVIDIA H200", "tables": {"linear": []}},
    "no shape": {"device": "NVIDIA H200", "tables": {"linear": {"0x5": {"variant": "a"}}}},
    "no variant": {"device": "NVIDIA H200", "tables": {"linear": {"5x5": {"splits": 1}}}},
    "no splits": {
        "device": "NVIDIA H200",
        "tables": {"linear": {"5x5": {"variant": "a", "splits": 0}}},
    },
    "too large": " " * (tuning.MAX_FILE_BYTES + 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_of_the_user_is_an_error_that_names_it(
    name: str, shipped: Path, tmp_path: Path
) -> None:
    write(tmp_path / "tuned", BROKEN[name])
    with breaks(KernelRule.BAD_TUNING, match=r"nvidia-h200\.json") as broken:
        Tuning.load("NVIDIA H200", cache_dir=tmp_path)
    assert "Delete the file" in broken.value.hint


def test_every_shipped_table_is_small_and_names_variants_that_exist() -> None:
    keys = {variant.key for variant in all_variants()}
    for path in tuning.SHIPPED.glob("*.json"):
        assert path.stat().st_size < 21_000
        device_name = json.loads(path.read_text())["device"]
        assert path.stem == slug(device_name)
        for choices in read_tuning(path, device_name).tables.values():
            assert {choice["variant"] for choice in choices.values()} <= keys
