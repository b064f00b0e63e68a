"""Terraform's own checks of the modules; real providers are used where TF_PLUGIN_MIRROR names a folder of them."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import modules
import pytest
from schema import SCHEMAS

from zse import cli

TERRAFORM = shutil.which("terraform") or shutil.which("tofu")
HERE = Path(__file__).parent
SOURCES = {"google": "hashicorp/google", "azurerm": "hashicorp/azurerm", "aws": "hashicorp/aws"}
SOURCES["restapi"] = "mastercard/restapi"
pytestmark = pytest.mark.skipif(TERRAFORM is None, reason="neither terraform nor tofu is installed")


def run(*arguments: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [TERRAFORM, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("TF_")},
            "CHECKPOINT_DISABLE": "1",
            **variables,
        },
    )


def registry_of(terraform: str) -> str:
    return "registry.opentofu.org" if Path(terraform).name == "tofu" else "registry.terraform.io"


@pytest.fixture(scope="module")
def reattach(tmp_path_factory) -> dict[str, str]:
    """Variables that point Terraform at providers made of the committed schemas."""
    pytest.importorskip("grpc")
    folder = tmp_path_factory.mktemp("s")
    names = sorted(path.stem for path in SCHEMAS.glob("*.json"))
    command = [sys.executable, str(HERE / "schema_provider.py"), str(folder), *names]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        providers = {
            f"{registry_of(TERRAFORM)}/{SOURCES[name]}": {
                "Protocol": "grpc",
                "ProtocolVersion": 5,
                "Pid": child.pid,
                "Test": True,
                "Addr": {"Network": "unix", "String": f"{folder}/{name}"},
            }
            for name in names
        }
        yield {"TF_REATTACH_PROVIDERS": json.dumps(providers)}
        child.stdin.close()


@pytest.fixture
def copy(tmp_path):
    """A copy of the whole tree, where Terraform may leave its own folders."""
    root = modules.TERRAFORM.parents[1]
    for part in ("infra/terraform", "examples/terraform"):
        if (root / part).is_dir():
            shutil.copytree(
                root / part, tmp_path / part, ignore=shutil.ignore_patterns(".terraform*")
            )
    return lambda folder: tmp_path / folder.relative_to(root)


def checked(folder: Path, variables: dict[str, str], *init: str) -> None:
    done = run("init", "-backend=false", "-input=false", *init, folder=folder, variables=variables)
    assert done.returncode == 0, done.stderr
    done = run("validate", "-json", folder=folder, variables=variables)
    told = json.loads(done.stdout)
    assert told["valid"], told["diagnostics"]
    assert told["warning_count"] == 0, told["diagnostics"]


def count_passed(folder: Path, variables: dict[str, str]) -> int:
    """Run a module's own tests; return how many passed."""
    done = run("test", "-no-color", folder=folder, variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.search(r"(\d+) passed, 0 failed", done.stdout)[1])


def test_every_file_is_formatted():
    for part in ("infra/terraform", "examples/terraform"):
        folder = modules.TERRAFORM.parents[1] / part
        done = run("fmt", "-check", "-recursive", "-diff", folder=folder, variables={})
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", modules.MODULES, ids=lambda path: path.name)
def test_a_module_is_valid_and_passes_its_own_tests(module, copy, reattach):
    folder = copy(module)
    checked(folder, reattach)
    assert count_passed(folder, reattach) >= 4


@pytest.mark.parametrize(
    "example", [*modules.EXAMPLES, *modules.REPOSITORY_EXAMPLES], ids=lambda path: path.name
)
def test_an_example_is_valid(example, copy, reattach):
    checked(copy(example), reattach)


README = modules.TERRAFORM.parents[1] / "examples" / "terraform" / "README.md"
COMMANDS = re.findall(r"^zse (deploy terraform .*)$", README.read_text().replace("\\\n", " "), re.M)


@pytest.mark.usefixtures("unread_images")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda line: line.split()[-1])
def test_what_a_line_of_the_readme_writes_is_valid_alone(command, reattach, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    assert cli.run(words) == 0
    checked(tmp_path / words[-1], reattach)


@pytest.mark.skipif("TF_PLUGIN_MIRROR" not in os.environ, reason="TF_PLUGIN_MIRROR is not set")
@pytest.mark.parametrize("module", modules.MODULES, ids=lambda path: path.name)
def test_real_providers_agree(module, copy):
    mirror = Path(os.environ["TF_PLUGIN_MIRROR"])
    (provider,) = {name.provider for name, _, _ in modules.things(module)}
    if not any(mirror.glob(f"*/{SOURCES[provider]}")):
        pytest.skip(f"the mirror has no {provider}")
    folder = copy(module)
    checked(folder, {}, f"-plugin-dir={mirror}")
    assert count_passed(folder, {}) >= 4
