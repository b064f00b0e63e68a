from __future__ import annotations

import pytest

from zse.oci.layout.cache import LayerCache
from zse.oci.layout.layer import write_layer
from zse.oci.layout.tar import file_of_bytes


@pytest.fixture
def builds():
    return []


@pytest.fixture
def build(builds):
    def build(blobs):
        builds.append(blobs)
        return write_layer([file_of_bytes("a", b"1")], blobs, comment="a")

    return build


def test_same_inputs_are_built_once(tmp_path, build, builds):
    first, was_cached = LayerCache(tmp_path).layer(["x"], build)
    again, is_cached = LayerCache(tmp_path).layer(["x"], build)
    assert (first, was_cached, is_cached, len(builds)) == (again, False, True, 1)


def test_other_inputs_are_built(tmp_path, build, builds):
    cache = LayerCache(tmp_path)
    cache.layer(["x"], build)
    cache.layer(["y"], build)
    assert len(builds) == 2


@pytest.mark.parametrize("damage", [b"", b"{}", b"not json"])
def test_broken_note_is_only_a_miss(tmp_path, build, builds, damage):
    cache = LayerCache(tmp_path)
    cache.layer(["x"], build)
    next((tmp_path / "keys").iterdir()).write_bytes(damage)
    cache.layer(["x"], build)
    assert len(builds) == 2


def test_cut_blob_is_built_again(tmp_path, build, builds):
    cache = LayerCache(tmp_path)
    layer, _ = cache.layer(["x"], build)
    cache.path(layer).write_bytes(b"")
    cache.layer(["x"], build)
    assert len(builds) == 2


def test_switched_off_cache_builds_anew(tmp_path, build, builds):
    LayerCache(tmp_path).layer(["x"], build)
    LayerCache(tmp_path, is_enabled=False).layer(["x"], build)
    assert len(builds) == 2
