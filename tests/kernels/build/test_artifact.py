"""Packs go into an artifact and come out of it as they were, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sample_packs import VARIANTS, sample_pack

from zse.cli import run
from zse.errors import NotFoundError
from zse.kernels.build.artifact import ARTIFACT_TYPE, PACK_TYPE, is_artifact, open_artifact
from zse.kernels.build.artifact import push_artifact as push
from zse.kernels.errors import KernelPackError
from zse.kernels.sources import source_digest
from zse.oci.errors import DigestMismatchError, LayoutError
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.index import choose_image

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = "ab" * 32


@pytest.fixture
def packs(tmp_path: Path) -> list[Path]:
    """Packs of this version's sources for two architectures."""
    folder = tmp_path / "packs"
    folder.mkdir()
    for gpu in ("sm_90", "sm_80"):
        data = sample_pack(gpu, provenance={"sources": source_digest()})
        (folder / f"{gpu}.zkp").write_bytes(data)
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oci:packs", True),
        ("tar:packs.tar:1", True),
        ("ghcr.io/acme/zse-kernels", True),
        ("127.0.0.1:5000/kernels", True),
        ("localhost/kernels", True),
        ("packs", False),
        ("./packs/new", False),
        ("../packs/new", False),
        ("/srv/packs", False),
        ("a/b", False),
    ],
)
def test_folders_and_artifacts_are_told_apart(text: str, expected: bool) -> None:
    assert is_artifact(text) is expected


def test_a_folder_that_looks_like_a_host_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "v1.0" / "packs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not is_artifact("v1.0/packs")


def test_the_manifest_lists_each_pack_as_it_is(packs: list[Path], tmp_path: Path) -> None:
    place = f"oci:{tmp_path / 'layout'}"
    digest = push(place, packs, auth_file=tmp_path, report=print)
    layout = ImageLayout.open(tmp_path / "layout")
    assert choose_image(layout.manifests(), source_digest(), place="oci:out").digest == digest
    document = json.loads(layout.read_blob(digest))
    assert document["artifactType"] == ARTIFACT_TYPE
    assert document["annotations"] == {"dev.zse.kernels.sources": source_digest()}
    named = {layer["annotations"]["org.opencontainers.image.title"] for layer in document["layers"]}
    assert named == {"sm_80.zkp", "sm_90.zkp"}
    assert {layer["mediaType"] for layer in document["layers"]} == {PACK_TYPE}
    with open_artifact(place, source_digest(), auth_file=tmp_path) as artifact:
        assert [artifact.read(gpu) for gpu in artifact.layers] == [p.read_bytes() for p in packs]


def test_the_same_packs_give_the_same_digest_in_any_order(
    packs: list[Path], tmp_path: Path
) -> None:
    first = push(f"oci:{tmp_path / 'a'}", packs, auth_file=tmp_path, report=print)
    second = push(f"oci:{tmp_path / 'b'}", packs[::-1], auth_file=tmp_path, report=print)
    assert first == second


def test_packs_that_do_not_belong_together_are_refused(packs: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other.zkp"
    other.write_bytes(sample_pack("sm_89"))
    place = f"oci:{tmp_path / 'a'}"
    with pytest.raises(KernelPackError, match="2 states"):
        push(place, [*packs, other], auth_file=tmp_path, report=print)
    with pytest.raises(KernelPackError, match="2 packs of 1") as twice:
        push(place, [packs[0], packs[0]], auth_file=tmp_path, report=print)
    assert "one an architecture" in twice.value.hint
    other.write_bytes(packs[0].read_bytes()[:-1] + b"!")
    with pytest.raises(KernelPackError):
        push(place, [other], auth_file=tmp_path, report=print)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"artifactType": "application/vnd.example"},
        {"artifactType": None},
        {"layers": [{"digest": "sha256:0"}]},
        {"layers": [{"mediaType": PACK_TYPE, "digest": "sha256:0", "size": 1}]},
        {"layers": 7},
    ],
)
def test_what_is_no_artifact_of_packs_is_refused(
    packs: list[Path], tmp_path: Path, change: dict[str, object]
) -> None:
    place = f"oci:{tmp_path / 'layout'}"
    digest = push(place, packs, auth_file=tmp_path, report=print)
    layout = ImageLayout.open(tmp_path / "layout")
    document = {**json.loads(layout.read_blob(digest)), **change}
    found = choose_image(layout.manifests(), source_digest(), place="oci:out").to_json()
    changed = layout.add("x", json.dumps(document).encode()).digest
    index = {"manifests": [{**found, "digest": changed}]}
    (tmp_path / "layout" / "index.json").write_text(json.dumps(index))
    with (
        pytest.raises(KernelPackError),
        open_artifact(place, source_digest(), auth_file=tmp_path),
    ):
        pass


def test_another_state_of_the_sources_is_not_found(packs: list[Path], tmp_path: Path) -> None:
    place = f"oci:{tmp_path / 'layout'}"
    push(place, packs, auth_file=tmp_path, report=print)
    with pytest.raises(LayoutError), open_artifact(place, SOURCES, auth_file=tmp_path):
        pass


def test_other_bytes_are_refused(packs: list[Path], tmp_path: Path) -> None:
    place = f"oci:{tmp_path / 'layout'}"
    push(place, packs, auth_file=tmp_path, report=print)
    for path in (tmp_path / "layout" / "blobs" / "sha256").iterdir():
        if path.read_bytes().startswith(b"ZKP"):
            path.write_bytes(sample_pack("sm_80", variants=VARIANTS[:1]))
    with open_artifact(place, source_digest(), auth_file=tmp_path) as artifact:
        with pytest.raises(DigestMismatchError):
            artifact.read("sm_90")
        with pytest.raises(NotFoundError, match="no kernel pack for sm_120"):
            artifact.read("sm_120")


def test_a_pack_under_the_name_of_another_architecture_is_refused(
    packs: list[Path], tmp_path: Path
) -> None:
    place = f"oci:{tmp_path / 'layout'}"
    push(place, packs, auth_file=tmp_path, report=print)
    with open_artifact(place, source_digest(), auth_file=tmp_path) as artifact:
        swapped = replace(artifact, layers={"sm_90": artifact.layers["sm_80"]})
        with pytest.raises(KernelPackError, match="gives a pack for sm_80 out as sm_90"):
            swapped.read("sm_90")


def test_packs_are_pushed_and_pulled_by_commands(
    packs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, out = f"oci:{tmp_path / 'layout'}", tmp_path / "out"
    assert run(["kernels", "push", place, str(packs[0].parent)]) == 0
    assert capsys.readouterr().out.startswith("sha256:")
    assert run(["kernels", "pull", place, "--gpu", "sm_90", "-o", str(out)]) == 0
    assert [path.name for path in out.iterdir()] == ["sm_90.zkp"]
    assert run(["kernels", "pull", place, "-o", str(out)]) == 2
    assert "sm_90.zkp exists already" in capsys.readouterr().err
    assert run(["kernels", "pull", place, "-o", str(out), "--force"]) == 0
    assert [(out / path.name).read_bytes() for path in packs] == [p.read_bytes() for p in packs]
    assert run(["kernels", "push", place, str(tmp_path / "layout")]) == 2
    assert "no pack" in capsys.readouterr().err


@pytest.mark.system
def test_packs_come_back_from_a_registry_as_they_were(
    packs: list[Path], registry: str, tmp_path: Path
) -> None:
    place, auth_file = f"{registry}/acme/zse-kernels", tmp_path / "none"
    digest = push(place, packs, auth_file=auth_file, report=print)
    assert push(place, packs, auth_file=auth_file, report=print) == digest
    with open_artifact(place, source_digest(), auth_file=auth_file, is_hurried=True) as artifact:
        assert [artifact.read(gpu) for gpu in artifact.layers] == [p.read_bytes() for p in packs]
    with open_artifact(f"{place}@{digest}", SOURCES, auth_file=auth_file) as artifact:
        assert set(artifact.layers) == {"sm_80", "sm_90"}
