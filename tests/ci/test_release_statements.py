"""The formula and the bill of materials of a release: every digest is a locked one, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import zse
from zse.oci.recipe import load_lock

ROOT = Path(__file__).resolve().parents[2]
HOMEBREW: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "homebrew.py"))
SBOM: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "release_sbom.py"))
RELEASES = "https://github.com/o/zse/releases/download"
WHEEL = f"zse_toolkit-{zse.__version__}-py3-none-any.whl"
LOCKS = {name: load_lock(ROOT / "infra" / "homebrew" / f"wheels.{name}.lock", "wheel")
         for name in ("amd64", "arm64")}  # fmt: skip
DIGEST = hashlib.sha256(b"wheel").hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / WHEEL).write_bytes(b"wheel")
    return tmp_path


@pytest.fixture
def formula(folder: Path) -> str:
    assert HOMEBREW["main"]([str(folder), RELEASES]) == 0
    return (folder / "zse.rb").read_text()


@pytest.fixture
def document(folder: Path) -> dict[str, Any]:
    assert SBOM["main"]([str(folder), "1790000000"]) == 0
    found: dict[str, Any] = json.loads((folder / "zse.cdx.json").read_text())
    return found


def test_the_formula_names_the_releases_wheel_by_its_digest(formula: str) -> None:
    (url,) = re.findall(r'^  url "(.*)", using: :nounzip$', formula, re.MULTILINE)
    assert url == f"{RELEASES}/v{zse.__version__}/{WHEEL}"
    assert f'\n  sha256 "{DIGEST}"\n' in formula
    assert f'\n  version "{zse.__version__}"\n' in formula


@pytest.mark.parametrize(("architecture", "other"), [("amd64", "on_arm"), ("arm64", "on_intel")])
def test_the_formula_has_each_locked_wheel_of_an_architecture_once(
    architecture: str, other: str, formula: str
) -> None:
    own = re.sub(rf"\n  {other} do\n.*?\n  end\n", "\n", formula, count=1, flags=re.DOTALL)
    rows = re.findall(
        r'resource "(.*)" do\n\s+url "https://pypi\.org/packages/[\w.]+/\w/[\w-]+/(.*)", '
        r'using: :nounzip\n\s+sha256 "(.*)"\n\s+end\n',
        own,
    )
    assert sorted(rows) == [(w["name"], w["file"], w["sha256"]) for w in LOCKS[architecture]]


def test_a_formulas_blocks_are_closed(formula: str) -> None:
    code = [line for line in formula.splitlines() if not line.startswith("#")]
    opened = sum(bool(re.match(r"\s*(class|def)\b|.*\bdo$", line)) for line in code)
    assert opened == sum(line.strip() == "end" for line in code)
    if shutil.which("ruby"):
        subprocess.run(["ruby", "-c"], input=formula, text=True, check=True)


@pytest.mark.parametrize("address", ['https://e.com/"+x', "http://e.com", "https://e.com/#{x}", ""])
def test_an_address_that_ruby_would_read_otherwise_is_refused(address: str, folder: Path) -> None:
    with pytest.raises(ValueError, match="no https address"):
        HOMEBREW["formula"](folder / WHEEL, address)


@pytest.mark.parametrize("architecture", LOCKS)
def test_the_lock_answers_the_projects_dependencies(architecture: str) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = {w["name"]: w["version"] for w in LOCKS[architecture]}
    for text in project["dependencies"]:
        wanted = Requirement(text)
        assert versions[canonicalize_name(wanted.name)] in wanted.specifier, text


@pytest.mark.parametrize("architecture", LOCKS)
def test_what_an_image_holds_too_is_the_same_file(architecture: str) -> None:
    image = {
        w["name"]: w for w in load_lock(ROOT / f"images/cpu/wheels.{architecture}.lock", "wheel")
    }
    shared = [w for w in LOCKS[architecture] if w["name"] in image]
    assert len(shared) > 20
    for wheel in shared:
        assert wheel["sha256"] == image[wheel["name"]]["sha256"], wheel["name"]


def test_the_bill_of_materials_names_every_locked_file_and_what_is_brought_along(
    document: dict[str, Any],
) -> None:
    root = document["metadata"]["component"]
    assert root["hashes"] == [{"alg": "SHA-256", "content": DIGEST}]
    assert {part["name"] for part in root["components"]} >= {"htmx.org", "uplot", "marked"}
    hashes = {part["bom-ref"]: part["hashes"][0]["content"] for part in document["components"]}
    assert hashes == {w["file"]: w["sha256"] for lock in LOCKS.values() for w in lock}
    (depends,) = [row for row in document["dependencies"] if row["ref"] == root["bom-ref"]]
    assert set(depends["dependsOn"]) == set(hashes)


def test_the_bill_of_materials_is_what_its_schema_says_and_the_same_twice(
    document: dict[str, Any], folder: Path
) -> None:
    text = (folder / "zse.cdx.json").read_text()
    SBOM["main"]([str(folder), "1790000000"])
    assert (folder / "zse.cdx.json").read_text() == text
    assert document["metadata"]["timestamp"] == "2026-09-21T14:13:20Z"
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    broken = text.replace("SHA-256", "SHA-0")
    assert validator.validate_str(broken) is not None
