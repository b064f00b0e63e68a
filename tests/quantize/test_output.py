"""Where a conversion may write, and what it leaves there when it fails."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from zse.errors import DiskFullError, NotFoundError, UsageError
from zse.quantize.convert import convert_model
from zse.store import Transfer
from zse.store.overwrite import WouldReplaceError


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_no_output_replaces_the_checkpoints_own_files(make_checkpoint, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    before = sha256(folder / "model.safetensors")
    (tmp_path / "link").symlink_to(folder / "model.safetensors")
    for out in (folder / "model.safetensors", tmp_path / "link", folder / "config.json"):
        with pytest.raises(WouldReplaceError, match="exists already"):
            convert_model(folder, out)
        with pytest.raises(UsageError, match="one of the files that are read"):
            convert_model(folder, out, force=True)
    assert sha256(folder / "model.safetensors") == before
    assert not list(tmp_path.rglob("*.partial"))


def test_an_output_inside_the_checkpoint_or_over_another_file_wants_force(
    make_checkpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model")
    with pytest.raises(WouldReplaceError, match="lies inside the input"):
        convert_model(folder, folder / "m.zse")
    for _ in range(2):
        convert_model(folder, folder / "m.zse", force=True)
    (tmp_path / "notes").write_text("mine")
    for resume in (False, True):
        with pytest.raises(WouldReplaceError) as caught:
            convert_model(folder, tmp_path / "notes", resume=resume)
        assert "--force" in caught.value.hint
    assert (tmp_path / "notes").read_text() == "mine"


def test_an_output_that_is_there_is_told_before_the_model_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "m.zse").write_text("mine")
    with pytest.raises(WouldReplaceError):
        convert_model("owner/never-asked-for", tmp_path / "m.zse")


def test_output_that_is_a_folder_is_a_usage_error(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        convert_model(llama_folder, tmp_path, "int4")


def test_an_output_named_as_a_gguf_file_is_refused(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="conversion writes"):
        convert_model(llama_folder, tmp_path / "model.gguf")
    assert list(tmp_path.glob("model*")) == []


def test_missing_output_folder_is_named(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="absent"):
        convert_model(llama_folder, tmp_path / "absent" / "m.zse", "int4")


class _Upload:
    """Stands in for the store: keeps what it was given, or fails."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.objects: dict[str, bytes] = {}

    def __call__(
        self, local_path: Path, url: object, settings: object, *, progress: object
    ) -> Transfer:
        if self.fails:
            raise DiskFullError("the bucket is full")
        data = self.objects[str(url)] = Path(local_path).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        return Transfer(size_bytes=len(data), sha256=digest, verified=True)


@pytest.mark.parametrize("fails", [False, True])
def test_upload_leaves_nothing_behind(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    upload = _Upload(fails=fails)
    monkeypatch.setattr("zse.quantize.output.put_file", upload)
    if fails:
        with pytest.raises(DiskFullError):
            convert_model(llama_folder, "s3://bucket/model.zse", "int4", force=True)
    else:
        report = convert_model(llama_folder, "s3://bucket/model.zse", "int4", force=True)
        assert report.path == "s3://bucket/model.zse"
        data = upload.objects["s3://bucket/model.zse"]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (report.size_bytes, report.sha256)
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    held = [path.name for path in left if path.stat().st_size]  # an empty lock may stay
    assert held == ["CACHEDIR.TAG"]
