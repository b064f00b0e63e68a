"""A file as an image: plain tars whose bytes follow from the file alone."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest

from zse.errors import UsageError
from zse.oci.errors import LayoutError
from zse.oci.weights.artifact import described, documents, parse_manifest, split_file

DATA = bytes(range(256)) * 1000


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "anything"
    found.write_bytes(DATA)
    return found


def whole(tar):
    return b"".join(tar.window(0, tar.size_bytes)())


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 100_000, 4096])
def test_layers_are_tars_that_others_unpack_to_the_file(path, chunk_bytes):
    tars = split_file(path, "m.zse", chunk_bytes)
    image = described(tars, "m.zse")
    found, names = b"", []
    for tar, piece in zip(tars, image.pieces, strict=True):
        data = whole(tar)
        assert len(data) == tar.size_bytes == piece.layer.size_bytes
        assert piece.layer.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert piece.start_bytes % 4096 == 0
        part = data[piece.start_bytes : piece.start_bytes + piece.length_bytes]
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = archive.getmembers()
            assert [one.name for one in members][:1] == ["models"]
            assert archive.extractfile(members[1]).read() == part
            names.append(members[1].name)
        found += part
    assert found == DATA
    pieces = [f"models/m.zse.part{number:04}" for number in range(len(tars))]
    assert names == (pieces if len(tars) > 1 else ["models/m.zse"])


def test_any_window_of_a_layer_is_that_part_of_it(path):
    (tar,) = split_file(path, "m.zse")
    data = whole(tar)
    places = [0, 1, 511, 4095, tar.start_bytes, tar.start_bytes + 1, len(data) - 1025, len(data)]
    for start in places:
        for end in places:
            if start <= end:
                assert b"".join(tar.window(start, end - start)()) == data[start:end]


def test_one_file_gives_one_digest(path, tmp_path):
    other = tmp_path / "elsewhere"
    other.write_bytes(DATA)
    first = documents(described(split_file(path, "m.zse"), "m.zse"))
    assert first == documents(described(split_file(other, "m.zse"), "m.zse"))
    index = json.loads(first[0])
    assert [one["platform"]["architecture"] for one in index["manifests"]] == ["amd64", "arm64"]


def test_what_was_described_is_read(path):
    image = described(split_file(path, "m.zse", 100_000), "m.zse")
    _, manifests, configs = documents(image)
    assert parse_manifest(manifests[0][1], "x") == image
    for config in configs:
        assert json.loads(config)["rootfs"]["diff_ids"] == [
            one.layer.digest for one in image.pieces
        ]


def change(path, value):
    def apply(document):
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return apply


@pytest.mark.parametrize(
    "spoil",
    [
        change(["annotations"], {}),
        change(["annotations", "dev.zse.model.file"], "../../etc/x.zse"),
        change(["annotations", "dev.zse.model.bytes"], "7"),
        change(["annotations", "dev.zse.model.bytes"], "-7"),
        change(["annotations", "dev.zse.model.beginning"], "zz" * 64),
        change(["annotations", "dev.zse.model.beginning"], "ab" * 63),
        change(["annotations", "dev.zse.model.beginning"], ["ab"]),
        change(["layers"], []),
        change(["layers", 0, "annotations", "dev.zse.piece.offset"], "5"),
        change(["layers", 1, "annotations", "dev.zse.piece.offset"], "0"),
        change(["layers", 0, "annotations", "dev.zse.piece.start"], "9" * 18),
        change(["layers", 0, "annotations", "dev.zse.piece.length"], "0"),
        change(["layers", 0, "annotations", "dev.zse.piece.length"], "1e3"),
        change(["layers", 0, "digest"], "sha512:ab"),
        change(["layers", 0, "mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip"),
        change(["layers", 0], 5),
        change(["layers"], "x"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(path, spoil):
    _, manifests, _ = documents(described(split_file(path, "m.zse", 100_000), "m.zse"))
    document = json.loads(manifests[0][1])
    spoil(document)
    with pytest.raises(LayoutError):
        parse_manifest(json.dumps(document).encode(), "x")


@pytest.mark.parametrize("name", ["m.bin", "../m.zse", ".zse", "a b.zse", ""])
def test_a_name_that_no_image_has_is_refused(path, name):
    with pytest.raises(UsageError):
        split_file(path, name)


def test_a_file_that_becomes_shorter_is_an_error(path):
    (tar,) = split_file(path, "m.zse")
    path.write_bytes(DATA[:1000])
    with pytest.raises(LayoutError, match="shorter"):
        whole(tar)
