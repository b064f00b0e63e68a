from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_packs import sample_pack

from zse.cli import image_kernels
from zse.cli.image_kernels import ImagePacks, build_image_packs, find_image_packs
from zse.errors import NotFoundError, UsageError
from zse.kernels.build.artifact import push_artifact
from zse.kernels.errors import KernelPackError
from zse.kernels.find import cached_pack
from zse.kernels.sources import source_digest
from zse.kernels.targets import target_named
from zse.settings import Settings


@pytest.fixture
def pack():
    """A pack of the kernels of this version."""
    return sample_pack("sm_90", provenance={"sources": source_digest()})


@pytest.fixture
def settings(tmp_path):
    return Settings(
        cache_dir=tmp_path / "cache",
        registry_auth_file=tmp_path / "none",
        released_kernels="none",
    )


@pytest.fixture
def artifact(tmp_path, pack):
    """A layout that holds the packs of this version and of another one."""
    place = f"oci:{tmp_path / 'layout'}"
    for name, content in {"new": pack, "old": sample_pack("sm_90")}.items():
        path = tmp_path / name / "sm_90.zkp"
        path.parent.mkdir()
        path.write_bytes(content)
        push_artifact(place, [path], auth_file=tmp_path, report=print)
    return place


@pytest.fixture
def no_triton(monkeypatch):
    monkeypatch.setattr(image_kernels, "find_spec", lambda _: None)


def found(settings, given="", gpus=("sm_90",), report=print):
    packs = find_image_packs(gpus, str(given), settings, report)
    assert packs.missing == ()
    return packs.found


def test_pack_of_the_folder_is_taken(tmp_path, settings, pack):
    (tmp_path / "sm_90.zkp").write_bytes(pack)
    assert found(settings, tmp_path) == {"sm_90": tmp_path / "sm_90.zkp"}


def test_missing_pack_says_how_to_build_it(tmp_path, settings):
    with pytest.raises(NotFoundError) as caught:
        found(settings, tmp_path)
    assert "zse kernels build --gpu sm_90" in caught.value.hint


def test_pack_of_other_kernels_is_refused(tmp_path, settings):
    (tmp_path / "sm_90.zkp").write_bytes(sample_pack("sm_90"))
    with pytest.raises(KernelPackError, match="from other kernels"):
        found(settings, tmp_path)


def test_pack_for_another_gpu_is_refused(tmp_path, settings):
    other = sample_pack("sm_80", provenance={"sources": source_digest()})
    (tmp_path / "sm_90.zkp").write_bytes(other)
    with pytest.raises(UsageError, match="for sm_80, not for sm_90"):
        found(settings, tmp_path)


def test_damaged_pack_is_refused(tmp_path, settings, pack):
    (tmp_path / "sm_90.zkp").write_bytes(pack[:-1] + b"!")
    with pytest.raises(KernelPackError):
        found(settings, tmp_path)


def test_pack_built_before_is_found_in_the_cache(settings, pack, no_triton):
    path = cached_pack(target_named("sm_90"), settings.cache_dir)
    path.parent.mkdir(parents=True)
    path.write_bytes(pack)
    assert found(settings) == {"sm_90": path}


def test_pack_of_an_artifact_is_checked_and_kept(settings, artifact, pack, no_triton):
    paths = found(settings, artifact)
    assert paths == {"sm_90": cached_pack(target_named("sm_90"), settings.cache_dir)}
    assert paths["sm_90"].read_bytes() == pack
    assert found(settings) == paths


def test_artifact_of_other_kernels_is_refused(settings, artifact):
    with pytest.raises(KernelPackError, match="from other kernels"):
        found(settings, f"{artifact}:{'ab' * 32}")
    assert not cached_pack(target_named("sm_90"), settings.cache_dir).exists()


def test_artifact_without_the_architecture_is_an_error_that_says_what_it_holds(settings, artifact):
    with pytest.raises(NotFoundError, match="no kernel pack for sm_80") as caught:
        found(settings, artifact, gpus=("sm_90", "sm_80"))
    assert "sm_90" in caught.value.hint


def test_pack_of_the_release_is_fetched_before_anything_is_built(settings, artifact, no_triton):
    said = []
    settings = replace(settings, released_kernels=artifact)
    assert set(found(settings, report=said.append)) == {"sm_90"}
    assert said == [f"kernels for sm_90 are those of {artifact}"]


@pytest.mark.parametrize("place", ["127.0.0.1:9/acme/zse-kernels", "oci:/none"])
def test_release_that_is_not_reached_costs_one_line_and_the_rest_is_built(
    settings, place, monkeypatch
):
    monkeypatch.setattr(image_kernels, "find_spec", lambda _: True)
    said = []
    settings = replace(settings, released_kernels=place)
    packs = find_image_packs(("sm_90", "sm_80"), "", settings, said.append)
    assert packs == ImagePacks(found={}, missing=("sm_90", "sm_80"))
    assert len(said) == 1
    assert said[0].startswith(f"no released kernels from {place}: ")


def test_release_with_a_damaged_pack_is_passed_over(settings, artifact, tmp_path, monkeypatch):
    monkeypatch.setattr(image_kernels, "find_spec", lambda _: True)
    for path in (tmp_path / "layout" / "blobs" / "sha256").iterdir():
        if path.read_bytes().startswith(b"ZKP"):
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    said = []
    settings = replace(settings, released_kernels=artifact)
    assert find_image_packs(("sm_90",), "", settings, said.append).missing == ("sm_90",)
    assert "other bytes" in said[0]


def test_without_triton_the_error_names_three_remedies(settings, no_triton):
    with pytest.raises(NotFoundError, match="no kernel pack for sm_90, sm_80") as caught:
        find_image_packs(("sm_90", "sm_80"), "", settings, print)
    for remedy in ("ZSE_RELEASED_KERNELS", "--kernels", "[kernels]"):
        assert remedy in caught.value.hint


def test_pack_that_is_missing_is_built(settings, pack, monkeypatch):
    path = cached_pack(target_named("sm_90"), settings.cache_dir)

    def build(gpu, path):
        path.parent.mkdir(parents=True)
        path.write_bytes(pack)

    monkeypatch.setattr(image_kernels, "build_in_child", build)
    packs = ImagePacks(found={"sm_80": Path("a")}, missing=("sm_90",))
    built = build_image_packs(packs, settings.cache_dir, print)
    assert built == {"sm_80": Path("a"), "sm_90": path}
