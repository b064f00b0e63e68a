"""A folder appears whole or not at all, and nothing of a user's is replaced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from zse.errors import NotFoundError, UsageError
from zse.quantize.convert import convert_model
from zse.quantize.export.folder import PartialFolder
from zse.quantize.export.model import export_model
from zse.store.overwrite import WouldReplaceError

SHARD_BYTES = 200_000


@pytest.fixture(scope="module")
def model(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "m.zse"
    convert_model(llama_folder, path, "bf16")
    return path


def digests(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def stopped_export(model: Path, out: Path, share: float = 0.6, **options: Any) -> None:
    def stop(done: int, total: int) -> None:
        if done > share * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_model(model, out, shard_bytes=SHARD_BYTES, progress=stop, **options)


def test_shards_and_their_index_hold_every_tensor(model: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = export_model(
        model,
        tmp_path / "out",
        shard_bytes=SHARD_BYTES,
        progress=lambda done, total: seen.append((done, total)),
    )
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert report.files == len(set(index["weight_map"].values())) > 2
    assert index["metadata"]["total_size"] == report.size_bytes
    assert seen[-1] == (report.size_bytes, report.size_bytes)
    for name, shard in index["weight_map"].items():
        with safe_open(tmp_path / "out" / shard, "pt") as file:
            assert file.get_tensor(name).dtype is torch.bfloat16


def test_a_stopped_export_leaves_nothing(model: Path, tmp_path: Path) -> None:
    stopped_export(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_export_writes_the_rest_and_gives_the_same_files(
    model: Path, tmp_path: Path
) -> None:
    export_model(model, tmp_path / "whole", shard_bytes=SHARD_BYTES)
    stopped_export(model, tmp_path / "out", resume=True)
    assert [path.name for path in tmp_path.iterdir() if path.name != "whole"] == ["out.partial"]
    report = export_model(model, tmp_path / "out", shard_bytes=SHARD_BYTES, resume=True)
    assert report.resumed_files
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert not (tmp_path / "out.partial").exists()


def test_what_another_export_left_is_not_used(model: Path, tmp_path: Path) -> None:
    stopped_export(model, tmp_path / "out", resume=True)
    report = export_model(
        model, tmp_path / "out", shard_bytes=SHARD_BYTES, dtype="fp16", resume=True
    )
    assert report.resumed_files == 0
    assert report.dtype == "fp16"


def test_a_folder_that_is_there_is_replaced_by_force_alone(model: Path, tmp_path: Path) -> None:
    export_model(model, tmp_path / "out", shard_bytes=SHARD_BYTES)
    with pytest.raises(WouldReplaceError, match="exists already"):
        export_model(model, tmp_path / "out")
    export_model(model, tmp_path / "out", force=True)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_is_replaced_touches_no_folder_beside_it(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.replaced").mkdir()
    (tmp_path / "out.replaced" / "thesis.tex").write_text("years of work")
    export_model(model, tmp_path / "out")
    export_model(model, tmp_path / "out", force=True)
    assert (tmp_path / "out.replaced" / "thesis.tex").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.replaced"]


def test_a_folder_that_cannot_get_its_name_leaves_the_older_one_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("older")
    renamed = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.name == "out.partial":
            raise OSError("the file system is read-only now")
        return renamed(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    partial = PartialFolder(out, "plan", keep=False)
    partial.write("config.json", b"newer")
    with pytest.raises(OSError, match="read-only"), partial:
        partial.publish()
    assert (out / "config.json").read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_with_other_things_is_never_replaced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"thesis\.tex, which is no part"):
        export_model(model, tmp_path / "out", force=True)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with pytest.raises(UsageError, match="is not a folder"):
        export_model(model, tmp_path / "link", force=True)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_a_partial_folder_that_is_not_ours_stays(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not what an export left"):
        export_model(model, tmp_path / "out")
    assert (tmp_path / "out.partial" / "notes.txt").read_text() == "mine"


def test_two_exports_do_not_write_one_folder(model: Path, tmp_path: Path) -> None:
    with (
        PartialFolder(tmp_path / "out", "plan", keep=True),
        pytest.raises(UsageError, match="another process is writing"),
    ):
        export_model(model, tmp_path / "out")


@pytest.mark.parametrize(
    ("out", "options", "error", "words"),
    [
        ("absent/out", {}, NotFoundError, "absent does not exist"),
        ("s3://bucket/out", {}, UsageError, "no folder here"),
        ("out", {"format": "gguf"}, UsageError, "format 'gguf'"),
        ("out", {"dtype": "fp8"}, UsageError, "dtype 'fp8'"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    model: Path, tmp_path: Path, out: str, options: Any, error: type[Exception], words: str
) -> None:
    where = out if "://" in out else tmp_path / out
    with pytest.raises(error, match=words):
        export_model(model, where, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_number_above_float16_is_an_error_and_no_infinity(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    from quantized_folders import edit_tensors

    from zse.errors import ConversionError

    folder = make_checkpoint(tmp_path / "model", num_hidden_layers=1)
    edit_tensors(folder, {"lm_head.weight": torch.full((96, 128), 1e5).bfloat16()})
    convert_model(folder, tmp_path / "m.zse", "bf16")
    shutil.rmtree(folder)
    with pytest.raises(ConversionError, match=r"lm_head\.weight.*not finite"):
        export_model(tmp_path / "m.zse", tmp_path / "out", dtype="fp16")
    assert [path.name for path in tmp_path.iterdir()] == ["m.zse"]
