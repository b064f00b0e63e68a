"""Where a kernel pack comes from, and what is said when there is none."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from broken_rules import breaks
from sample_packs import sample_pack

from zse.device.facts_of_gpus import A100, H200, L4
from zse.errors import NotFoundError
from zse.kernels import find
from zse.kernels.errors import KernelPackError, KernelPackNotFound, KernelRule
from zse.kernels.find import cached_pack, find_pack, read_ahead
from zse.kernels.targets import TARGETS

if TYPE_CHECKING:
    from pathlib import Path

    from zse.kernels.pack import KernelPack

DIGEST = "cd" * 32
CURRENT = {"sources": DIGEST}


class Model:
    """A model file with sections."""

    def __init__(self, **sections: bytes) -> None:
        self._sections = {f"kernels/{name}": data for name, data in sections.items()}

    def has_section(self, name: str) -> bool:
        return name in self._sections

    def section(self, name: str) -> memoryview:
        return memoryview(self._sections[name])


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of shipped packs, sources of a known digest, and no triton."""
    monkeypatch.setattr(find, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(find, "source_digest", lambda: DIGEST)
    monkeypatch.setattr(find, "find_spec", lambda name: None)
    return tmp_path / "shipped"


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def search(tmp_path: Path, **changes: Any) -> KernelPack:
    arguments: dict[str, Any] = {
        "explicit": None,
        "sections": None,
        "cache_dir": tmp_path / "cache",
        "device": H200,
    }
    return find_pack(**{**arguments, **changes})


def test_the_users_pack_wins_even_if_it_is_of_other_sources(tmp_path: Path, shipped: Path) -> None:
    put(shipped / "sm_90.zkp", sample_pack(provenance=CURRENT))
    path = put(tmp_path / "own.zkp", sample_pack(provenance={"zse": "own"}))
    assert search(tmp_path, explicit=path).provenance["zse"] == "own"


def test_a_folder_of_packs_gives_the_best_one_for_the_gpu(tmp_path: Path) -> None:
    for target in ("sm_80", "sm_86", "sm_90"):
        put(tmp_path / "packs" / f"{target}.zkp", sample_pack(target))
    l4 = search(tmp_path, explicit=tmp_path / "packs", device=L4)
    assert l4.target == "sm_86"
    rtx = replace(L4, name="RTX", target="sm_120")
    with pytest.raises(NotFoundError, match=r"sm_120\.zkp that RTX can use") as missing:
        search(tmp_path, explicit=tmp_path / "packs", device=rtx)
    assert "zse kernels build --gpu sm_120" in missing.value.hint


@pytest.mark.parametrize("is_named", [True, False])
def test_a_pack_that_was_read_ahead_is_not_read_again(
    tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    pack = put(shipped / "sm_90.zkp", sample_pack("sm_90", provenance=CURRENT))
    read_ahead(str(pack) if is_named else "")
    monkeypatch.setattr(find.KernelPack, "open", None)
    assert search(tmp_path, explicit=pack if is_named else None).target == "sm_90"


@pytest.mark.parametrize("content", [b"", b"no pack", None])
def test_what_is_wrong_with_a_pack_is_not_said_before_a_gpu_wants_it(
    tmp_path: Path, shipped: Path, content: bytes | None
) -> None:
    path = shipped / "sm_90.zkp"
    if content is not None:
        put(path, content)
    read_ahead("")
    read_ahead(str(path))
    with pytest.raises((KernelPackError, KernelPackNotFound, NotFoundError)):
        search(tmp_path, explicit=path)


def test_the_users_pack_for_another_gpu_is_an_error(tmp_path: Path) -> None:
    path = put(tmp_path / "own.zkp", sample_pack("sm_80"))
    with breaks(KernelRule.PACK_MISMATCH, match="NVIDIA H200 needs sm_90"):
        search(tmp_path, explicit=path)
    with pytest.raises(NotFoundError):
        search(tmp_path, explicit=tmp_path / "none.zkp")


def test_then_come_the_model_file_the_shipped_pack_and_the_cache(
    tmp_path: Path, shipped: Path
) -> None:
    cached = cached_pack(TARGETS["sm_90"], tmp_path / "cache")
    put(cached, sample_pack(provenance={**CURRENT, "zse": "cache"}))
    assert cached.name == "sm_90-cdcdcdcdcdcdcdcd.zkp"
    assert search(tmp_path).provenance["zse"] == "cache"
    put(shipped / "sm_90.zkp", sample_pack(provenance={**CURRENT, "zse": "shipped"}))
    assert search(tmp_path).provenance["zse"] == "shipped"
    model = Model(sm_90=sample_pack(provenance={**CURRENT, "zse": "model"}))
    assert search(tmp_path, sections=model).provenance["zse"] == "model"
    other = Model(sm_80=sample_pack("sm_80", provenance=CURRENT))
    assert search(tmp_path, sections=other).provenance["zse"] == "shipped"


def test_a_pack_of_other_kernel_sources_is_passed_over_with_a_warning(
    tmp_path: Path, shipped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(shipped / "sm_90.zkp", sample_pack(provenance={**CURRENT, "zse": "shipped"}))
    model = Model(sm_90=sample_pack(provenance={"sources": "00" * 32, "zse": "0.0.9"}))
    assert search(tmp_path, sections=model).provenance["zse"] == "shipped"
    assert "section kernels/sm_90 of the model file is passed over: zse 0.0.9" in caplog.text


def test_without_sources_to_compare_a_pack_is_taken_as_it_is(
    tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "source_digest", lambda: "")
    put(shipped / "sm_90.zkp", sample_pack())
    assert search(tmp_path).target == "sm_90"


def test_a_damaged_pack_is_an_error_and_is_not_passed_over(tmp_path: Path, shipped: Path) -> None:
    put(shipped / "sm_90.zkp", sample_pack()[:100])
    with pytest.raises(KernelPackError, match=r"shipped/sm_90\.zkp"):
        search(tmp_path)


def test_no_pack_and_no_triton_is_an_error_that_names_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(KernelPackNotFound, match=r"NVIDIA H200 \(sm_90\)") as missing:
        search(tmp_path)
    assert "zse kernels build --gpu sm_90 -o PACK" in missing.value.hint
    assert "image with `--gpu sm_90`" in missing.value.hint
    assert missing.value.exit_code == 12


def test_a_gpu_too_old_or_too_new_is_an_error_that_says_so(tmp_path: Path) -> None:
    for target in ("sm_75", "sm_130", "gfx942"):
        with pytest.raises(KernelPackNotFound, match="has no kernels"):
            search(tmp_path, device=replace(H200, target=target))


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of Python: it writes down how it was called, then does what it is told."""
    program = tmp_path / "builder"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n. {tmp_path}/script\n')
    program.chmod(0o755)
    put(tmp_path / "pack", sample_pack(provenance=CURRENT))
    (tmp_path / "script").write_text(
        f"echo compiled 7 of 9 >&2\nfor last; do :; done\nmkdir -p {tmp_path}/cache/kernels\n"
        f'cp {tmp_path}/pack "$last"\n'
    )
    monkeypatch.setattr(find.sys, "executable", str(program))
    monkeypatch.setattr(find, "find_spec", lambda name: object())
    return tmp_path


def test_with_triton_a_child_process_builds_into_the_cache(
    builder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "zse.kernels")
    assert search(builder).target == "sm_90"
    path = cached_pack(TARGETS["sm_90"], builder / "cache")
    calls = [f"-m zse kernels build --gpu sm_90 --force -o {path}"]
    assert (builder / "calls").read_text().splitlines() == calls
    assert "building one into" in caplog.text
    assert "compiled 7 of 9" in caplog.text
    assert search(builder).name == str(path)
    assert (builder / "calls").read_text().splitlines() == calls
    with pytest.raises(KernelPackNotFound):
        search(builder, device=A100, build=False)


def test_a_pack_of_the_cache_that_was_passed_over_is_replaced(builder: Path) -> None:
    path = cached_pack(TARGETS["sm_90"], builder / "cache")
    put(path, sample_pack())
    assert search(builder).provenance["sources"] == CURRENT["sources"]
    assert "--force" in (builder / "calls").read_text().split()


def test_a_build_that_fails_is_an_error_with_its_last_words(builder: Path) -> None:
    (builder / "script").write_text("echo a >&2; echo error: no kernel compiles >&2; exit 12\n")
    with pytest.raises(KernelPackError, match="code 12: error: no kernel compiles") as failed:
        search(builder)
    assert "zse kernels build --gpu sm_90" in failed.value.hint


def test_a_build_that_is_told_to_end_takes_its_child_along(builder: Path) -> None:
    (builder / "script").write_text(
        f"trap 'echo ended > {builder}/ended; exit 143' TERM\necho begun >&2\n"
        "while :; do sleep 0.1; done\n"
    )

    def stop(_: str) -> None:
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        find.build_in_child("sm_90", builder / "sm_90.zkp", report=stop)
    assert (builder / "ended").read_text() == "ended\n"
