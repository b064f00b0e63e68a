from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor

import pytest

from zse.errors import DiskFullError
from zse.oci.errors import DigestMismatchError, LayoutError
from zse.oci.layout import folder as layout_module
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.index import choose_image
from zse.oci.layout.manifest import (
    MEDIA_TYPE_MANIFEST,
    digest_of,
    hex_of,
)


@pytest.fixture
def layout(tmp_path):
    layout = ImageLayout(tmp_path / "layout")
    layout.create()
    return layout


def add_image(layout: ImageLayout, content: bytes, tag: str, media_type=MEDIA_TYPE_MANIFEST):
    manifest = layout.add(media_type, content)
    layout.add_image(manifest, tag)
    return manifest


def found(layout: ImageLayout, tag: str) -> bytes:
    return layout.read_blob(choose_image(layout.manifests(), tag, place="oci:out").digest)


def test_image_is_found_by_its_tag(layout):
    add_image(layout, b"one", "1")
    add_image(layout, b"two", "2")
    assert found(ImageLayout.open(layout.folder), "2") == b"two"


def test_new_image_replaces_the_one_of_its_tag(layout):
    add_image(layout, b"old", "1")
    add_image(layout, b"new", "1")
    assert found(layout, "") == b"new"


def test_choice_between_images_needs_a_tag(layout):
    add_image(layout, b"one", "1")
    add_image(layout, b"two", "2")
    with pytest.raises(LayoutError, match="2 images"):
        found(layout, "")


def test_folder_that_is_no_layout_is_refused(tmp_path):
    with pytest.raises(LayoutError, match="not an OCI image layout"):
        ImageLayout.open(tmp_path)


def test_changed_blob_is_noticed(layout):
    digest = layout.add("x", b"content").digest
    layout.blob_path(digest).write_bytes(b"changed")
    with pytest.raises(DigestMismatchError):
        layout.read_blob(digest)


@pytest.mark.parametrize("digest", ["sha256:../../x", "md5:aa", "sha256:" + "G" * 64, ""])
def test_digest_that_is_no_file_name_is_refused(layout, digest):
    with pytest.raises(LayoutError, match="not a sha256 digest"):
        layout.blob_path(digest)


def test_file_from_a_disk_without_links_is_copied(layout, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "other disk")

    monkeypatch.setattr(layout_module.os, "link", refuse)
    source = tmp_path / "blob"
    source.write_bytes(b"data")
    digest = digest_of(b"data")
    layout.add_file(source, digest)
    assert layout.blob_path(digest).read_bytes() == b"data"


def test_full_disk_is_its_own_error(layout, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    source = tmp_path / "blob"
    source.write_bytes(b"data")
    monkeypatch.setattr(layout_module.os, "link", refuse)
    with monkeypatch.context() as disk:
        disk.setattr("zse.store.local.os.write", refuse)
        with pytest.raises(DiskFullError, match="no room"):
            layout.add_file(source, digest_of(b"data"))
    assert list(layout.blobs.iterdir()) == []


def test_file_that_is_there_is_kept(layout, tmp_path):
    source = tmp_path / "blob"
    source.write_bytes(b"data")
    for _ in range(2):
        layout.add_file(source, digest_of(b"data"))
    assert [path.name for path in layout.blobs.iterdir()] == [hex_of(digest_of(b"data"))]


def test_builds_that_list_their_images_at_the_same_time_all_do(layout):
    tags = [str(number) for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda tag: add_image(layout, tag.encode(), tag), tags))
    assert {found(layout, tag) for tag in tags} == {tag.encode() for tag in tags}
