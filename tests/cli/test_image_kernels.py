from __future__ import annotations

import subprocess

import pytest
from sample_packs import sample_pack

from zse.cli import image_kernels
from zse.cli.image_kernels import image_packs
from zse.errors import NotFoundError, UsageError
from zse.kernels.find import cached_pack
from zse.kernels.pack_errors import KernelPackError
from zse.kernels.sources import source_digest
from zse.kernels.targets import target_named


@pytest.fixture
def pack():
    """A pack of the kernels of this version."""
    return sample_pack("sm_90", provenance={"sources": source_digest()})


def packs(tmp_path, folder=None, gpus=("sm_90",)):
    return image_packs(gpus, folder, tmp_path / "cache", lambda _: None)


def test_pack_of_the_folder_is_taken(tmp_path, pack):
    (tmp_path / "sm_90.zkp").write_bytes(pack)
    assert packs(tmp_path, tmp_path) == {"sm_90": tmp_path / "sm_90.zkp"}


def test_missing_pack_says_how_to_build_it(tmp_path):
    with pytest.raises(NotFoundError) as caught:
        packs(tmp_path, tmp_path)
    assert "zse kernels build --gpu sm_90" in caught.value.hint


def test_pack_of_other_kernels_is_refused(tmp_path):
    (tmp_path / "sm_90.zkp").write_bytes(sample_pack("sm_90"))
    with pytest.raises(KernelPackError, match="from other kernels"):
        packs(tmp_path, tmp_path)


def test_pack_for_another_gpu_is_refused(tmp_path):
    other = sample_pack("sm_80", provenance={"sources": source_digest()})
    (tmp_path / "sm_90.zkp").write_bytes(other)
    with pytest.raises(UsageError, match="for sm_80, not for sm_90"):
        packs(tmp_path, tmp_path)


def test_damaged_pack_is_refused(tmp_path, pack):
    (tmp_path / "sm_90.zkp").write_bytes(pack[:-1] + b"!")
    with pytest.raises(KernelPackError):
        packs(tmp_path, tmp_path)


def test_pack_built_before_is_found_in_the_cache(tmp_path, pack):
    path = cached_pack(target_named("sm_90"), tmp_path / "cache")
    path.parent.mkdir(parents=True)
    path.write_bytes(pack)
    assert packs(tmp_path) == {"sm_90": path}


def test_pack_that_is_not_there_is_built_where_triton_is(tmp_path, pack, monkeypatch):
    path = cached_pack(target_named("sm_90"), tmp_path / "cache")

    def build(command, **_):
        path.write_bytes(pack)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(image_kernels, "find_spec", lambda _: True)
    monkeypatch.setattr(image_kernels.subprocess, "run", build)
    assert packs(tmp_path) == {"sm_90": path}
    monkeypatch.setattr(image_kernels, "find_spec", lambda _: None)
    with pytest.raises(NotFoundError, match="sm_80"):
        packs(tmp_path, gpus=("sm_80",))


def test_build_that_fails_says_how_to_see_why(tmp_path, monkeypatch):
    monkeypatch.setattr(image_kernels, "find_spec", lambda _: True)
    monkeypatch.setattr(
        image_kernels.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 7),
    )
    with pytest.raises(KernelPackError, match="code 7"):
        packs(tmp_path)
