"""A checkpoint folder in object storage is converted as one on the disk is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faulty_s3 import Handler, faulty_s3

from zse.errors import CheckpointError, NotFoundError, RefusedError, UsageError
from zse.quantize.convert import ConversionProgress, convert_model
from zse.quantize.near_miss import AdapterError
from zse.quantize.text_files import TokenizerMissingError

if TYPE_CHECKING:
    from pathlib import Path

    from faulty_s3 import FaultyS3

__all__ = ["faulty_s3"]


@pytest.fixture
def listed(faulty_s3: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyS3:
    """The server, which lists its objects, and an empty cache."""
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))

    def list_objects(request: Handler) -> bool:
        if request.kind != "GET" or "list-type=2" not in request.path:
            return False
        items = "".join(
            f"<Contents><Key>{path.split('/', 2)[2]}</Key><Size>{len(data)}</Size></Contents>"
            for path, (data, _) in sorted(faulty_s3.objects.items())
        )
        request.answer(200, f"<ListBucketResult>{items}</ListBucketResult>".encode())
        return True

    faulty_s3.fault = list_objects
    return faulty_s3


def store_folder(server: FaultyS3, folder: Path, key: str) -> None:
    for path in folder.iterdir():
        server.objects[f"/bucket/{key}/{path.name}"] = (path.read_bytes(), {})


def fetched(server: FaultyS3) -> list[str]:
    return [line for line in server.seen("^GET") if "list-type" not in line]


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_bytes_are_those_of_the_same_folder_on_disk(
    listed: FaultyS3, make_checkpoint, tmp_path: Path, slash: str
) -> None:
    folder = make_checkpoint(tmp_path / "model", shards=2)
    store_folder(listed, folder, "ck/model")
    listed.objects["/bucket/ck/model/pytorch_model.bin"] = (b"pickle", {})
    listed.objects["/bucket/ck/model/runs/config.json"] = (b"{}", {})
    listed.objects["/bucket/ck/model-2/config.json"] = (b"{}", {})
    here = convert_model(folder, tmp_path / "a.zse")
    seen: list[ConversionProgress] = []
    there = convert_model(f"s3://bucket/ck/model{slash}", tmp_path / "b.zse", progress=seen.append)
    assert there.sha256 == here.sha256
    done = [now for now in seen if now.stage == "fetch"]
    assert done[-1].done_bytes == done[-1].total_bytes
    assert not any(".bin" in line or "runs" in line for line in fetched(listed))


def test_what_was_fetched_is_not_fetched_again(
    listed: FaultyS3, llama_folder: Path, tmp_path: Path
) -> None:
    store_folder(listed, llama_folder, "model")
    convert_model("s3://bucket/model", tmp_path / "a.zse")
    listed.requests.clear()
    convert_model("s3://bucket/model", tmp_path / "b.zse", "int8")
    assert fetched(listed) == []


@pytest.mark.parametrize(
    ("names", "error", "found"),
    [
        ([], NotFoundError, "there is nothing in s3://bucket/model/"),
        (["README.md"], NotFoundError, "holds no config.json"),
        (["config.json"], CheckpointError, "holds neither"),
        (["config.json", "pytorch_model.bin"], RefusedError, "pickle"),
        (["config.json", "model.safetensors"], TokenizerMissingError, "no tokenizer.json"),
        (["adapter_config.json"], AdapterError, "is an adapter"),
        (["a.Q4.gguf"], CheckpointError, "GGUF"),
    ],
)
def test_what_is_no_checkpoint_is_told_before_anything_is_fetched(
    listed: FaultyS3, tmp_path: Path, names: list[str], error: type[Exception], found: str
) -> None:
    listed.objects["/bucket/other"] = (b"", {})
    for name in names:
        listed.objects[f"/bucket/model/{name}"] = (b"x", {})
    with pytest.raises(error, match=found):
        convert_model("s3://bucket/model", tmp_path / "m.zse")
    assert fetched(listed) == []


@pytest.mark.parametrize(("name", "found"), [("m.zse", "converted already"), ("m", "one object")])
def test_one_object_is_called_what_it_is(
    listed: FaultyS3, tmp_path: Path, name: str, found: str
) -> None:
    listed.objects[f"/bucket/{name}"] = (b"x", {})
    with pytest.raises(UsageError, match=found):
        convert_model(f"s3://bucket/{name}", tmp_path / "out.zse")
