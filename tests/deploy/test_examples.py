"""The files in ``examples`` are what the commands of their READMEs write."""

import re
import shlex
from pathlib import Path

import pytest

from zse.cli import deploy, deployed, run
from zse.cli.app import command_of
from zse.deploy.registry import TARGETS
from zse.deploy.verbs import Verb

pytestmark = pytest.mark.usefixtures("unread_images")
EXAMPLES = Path(__file__).parents[2] / "examples"
RENDERED = sorted(path.parent for path in EXAMPLES.glob("*/endpoint"))


def deploy_lines(text: str) -> list[list[str]]:
    """Return the ``zse deploy`` commands in the code blocks of a page."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("zse deploy ")]
    return [line[1:] for line in words]


@pytest.mark.parametrize("folder", RENDERED, ids=lambda folder: folder.name)
def test_an_example_is_what_its_command_writes(folder, tmp_path, capsys):
    line = deploy_lines((folder / "README.md").read_text())[0]
    assert line[-2:] == ["--output", "endpoint"]
    assert run([*line[:-1], str(tmp_path)]) == 0
    capsys.readouterr()
    written = {
        str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()
    }
    kept = folder / "endpoint"
    assert {name: (kept / name).read_text() for name in written} == written
    # A module of Terraform is a link to ours there, with its tests beside it.
    assert {
        str(p.relative_to(kept))
        for p in kept.rglob("*")
        if p.is_file() and "modules" not in p.parts
    } == {name for name in written if not name.startswith("modules/")}


LINES = [
    (path.parent.name, line)
    for path in sorted(EXAMPLES.glob("*/README.md"))
    for line in deploy_lines(path.read_text())
    if "--apply" not in line and line[2] not in set(Verb)
]


@pytest.mark.parametrize(
    ("folder", "line"), LINES, ids=[f"{folder}-{line[-1]}" for folder, line in LINES]
)
def test_every_line_of_the_examples_works_in_any_folder(folder, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(line) == 0
    for path in (tmp_path / line[-1]).rglob("*"):
        assert path.is_dir() or str(EXAMPLES.parent) not in path.read_text()


def test_every_target_has_an_example():
    written = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert set(TARGETS) - {"terraform"} <= written
    modules = EXAMPLES.parent / "infra" / "terraform" / "examples"
    assert set(TARGETS["terraform"].forms) <= {path.name for path in modules.iterdir()}


def test_the_guide_and_the_examples_use_options_that_exist():
    pages = [*EXAMPLES.rglob("*.md"), EXAMPLES.parent / "docs" / "guides" / "deploy.md"]
    for page in pages:
        for line in deploy_lines(page.read_text()):
            flags = {word.partition("=")[0] for word in line if word.startswith("--")}
            used = command_of((deployed if line[2] in set(Verb) else deploy).app)
            assert flags <= {name for option in used.params for name in option.opts}, page
