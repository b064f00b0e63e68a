"""How zse was installed decides every hint that speaks of installing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

import zse
from zse.errors import MissingDependencyError
from zse.install import (
    DISTRIBUTION,
    EXTRA_OF_PACKAGE,
    IMAGE_FOLDER,
    find_installation,
    strangers_warning,
)

ROOT = Path(__file__).resolve().parents[1]
PIP = f"{sys.executable} -m pip install"
CPU_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"


def installed(
    site: Path, *, name: str = DISTRIBUTION, origin: object = None, installer: str = "pip"
) -> PathDistribution:
    """Write what an installer leaves beside the code."""
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "INSTALLER").write_text(f"{installer}\n")
    (folder / "RECORD").write_text("zse/__init__.py,sha256=x,1\n")
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))
    return PathDistribution(folder)


def command(site: Path, extra: str = "s3", **facts: object) -> str:
    found = installed(site, **facts)  # type: ignore[arg-type]
    hint = find_installation(site, prefix=site, found=[found]).hint(extra)
    return hint.removeprefix("Install it: ")


def test_an_index_is_asked_for_the_distribution_by_name(tmp_path: Path) -> None:
    assert command(tmp_path) == f"{PIP} 'zse-toolkit[s3]'"


@pytest.mark.parametrize("extra", ["hf", "convert"])
def test_torch_for_cpus_comes_from_its_own_index(tmp_path: Path, extra: str) -> None:
    assert command(tmp_path, extra) == f"{PIP} {CPU_INDEX} 'zse-toolkit[{extra}]'"


def test_a_folder_that_was_installed_is_installed_again(tmp_path: Path) -> None:
    origin = {"url": "file:///home/a%20b/zse", "dir_info": {}}
    assert command(tmp_path, origin=origin) == f"{PIP} '/home/a b/zse[s3]'"


def test_an_editable_checkout_stays_editable(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    origin = {"url": root.as_uri(), "dir_info": {"editable": True}}
    found = installed(tmp_path / "site", origin=origin)
    hint = find_installation(root, prefix=tmp_path, found=[found]).hint("s3")
    assert hint == f"Install it: {PIP} -e '{root}[s3]'"


def test_a_checkout_on_the_path_needs_no_metadata() -> None:
    found = find_installation(ROOT, found=[])
    assert (found.source, found.is_editable) == (str(ROOT), True)


def test_a_wheel_file_is_named_again(tmp_path: Path) -> None:
    origin = {"url": "file:///dl/zse_toolkit-0.1.0-py3-none-any.whl", "archive_info": {}}
    wanted = f"{PIP} '/dl/zse_toolkit-0.1.0-py3-none-any.whl[s3]'"
    assert command(tmp_path, origin=origin) == wanted


def test_an_address_is_named_again(tmp_path: Path) -> None:
    url = "https://example.com/zse_toolkit-0.1.0-py3-none-any.whl"
    origin = {"url": url, "archive_info": {}}
    assert command(tmp_path, origin=origin) == f"{PIP} 'zse-toolkit[s3] @ {url}'"


def test_a_repository_is_named_with_its_commit(tmp_path: Path) -> None:
    origin = {"url": "https://example.com/zse", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    wanted = f"{PIP} 'zse-toolkit[s3] @ git+https://example.com/zse@abc'"
    assert command(tmp_path, origin=origin) == wanted


def test_metadata_that_is_no_json_counts_as_an_index(tmp_path: Path) -> None:
    found = installed(tmp_path)
    (tmp_path / "zse_toolkit-1.0.dist-info" / "direct_url.json").write_text("{")
    assert find_installation(tmp_path, prefix=tmp_path, found=[found]).source == ""


@pytest.mark.parametrize(
    ("mark", "wanted"),
    [
        ("pipx_metadata.json", "pipx install --force"),
        ("uv-receipt.toml", "uv tool install --force"),
    ],
)
def test_a_tool_of_its_own_environment_is_installed_again_by_what_made_it(
    tmp_path: Path, mark: str, wanted: str
) -> None:
    (tmp_path / mark).write_text("")
    assert command(tmp_path) == f"{wanted} 'zse-toolkit[s3]'"


def test_what_uv_installed_uv_adds_to(tmp_path: Path) -> None:
    assert command(tmp_path, installer="uv") == "uv pip install 'zse-toolkit[s3]'"


@pytest.mark.parametrize(
    ("extra", "wanted"),
    [("convert", "--recipe cuda-dev"), ("s3", "--recipe cuda-dev")],
)
def test_in_an_image_the_hint_is_to_build_it_again(extra: str, wanted: str) -> None:
    hint = find_installation(Path("/", IMAGE_FOLDER), found=[]).hint(extra)
    assert hint == f"An image has no pip: build it again with `zse build-image MODEL {wanted}`."


def test_another_program_of_the_same_import_name_is_said(tmp_path: Path) -> None:
    ours = installed(tmp_path)
    other = installed(tmp_path, name="zllm-zse")
    hint = find_installation(tmp_path, prefix=tmp_path, found=[ours, other]).hint("s3")
    assert hint.startswith("zllm-zse 1.0, another program, is installed under the same import name")
    assert "`pip uninstall zllm-zse` first, then install zse-toolkit again." in hint
    assert strangers_warning([]) == ""


def test_a_missing_dependency_with_an_extra_says_how_to_get_it() -> None:
    assert f"'{ROOT}[s3]'" in MissingDependencyError("no boto3", extra="s3").hint
    assert MissingDependencyError("no git", hint="Install git.").hint == "Install git."


def test_the_project_has_the_name_and_the_extras_that_hints_speak_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"] == {"zse": "zse.cli:main"}
    assert set(EXTRA_OF_PACKAGE.values()) <= set(project["optional-dependencies"])


def test_no_other_text_of_the_package_says_how_to_install() -> None:
    package = Path(zse.__file__).parent
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        if path.name != "install.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"pip3? install|zllm", node.value)
    ]
    assert found == []


def test_nothing_of_the_tree_speaks_of_the_other_distribution() -> None:
    known = {"scripts/setup", "tests/test_install.py", "tests/cli/test_cli.py"}
    listed = subprocess.run(
        ["git", "grep", "-l", "zllm"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode > 1:
        pytest.skip("not a git checkout")
    assert (
        set(listed.stdout.split()) - known - {"docs/guides/install.md", "zse/install.py"} == set()
    )


def test_an_error_without_an_extra_reads_no_metadata() -> None:
    code = (
        "import sys, zse.errors as e; e.MissingDependencyError('x'); e.ZSEError('y')\n"
        "sys.exit('zse.install' in sys.modules or 'importlib.metadata' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
