"""Files are written whole, never over others; commands stop at the first that fails."""

import pytest

from zse.deploy.carry_out import run_commands, write_files
from zse.deploy.errors import DeployError
from zse.deploy.registry import make_plan
from zse.errors import MissingDependencyError, RefusedError


@pytest.fixture
def plan(make_order):
    return make_plan("vast", make_order("vast"))


def test_files_are_written_below_the_folder_and_scripts_can_be_run(plan, tmp_path):
    folder = tmp_path / "new" / "deeper"
    assert {path.name for path in write_files(plan, folder)} == {
        "template.json",
        "launch.sh",
        "zse-deploy.json",
    }
    assert (folder / "launch.sh").stat().st_mode & 0o111
    assert not (folder / "template.json").stat().st_mode & 0o111
    assert sorted(path.name for path in folder.iterdir()) == [
        "launch.sh",
        "template.json",
        "zse-deploy.json",
    ]


def test_writing_again_changes_nothing(plan, tmp_path):
    write_files(plan, tmp_path)
    assert write_files(plan, tmp_path) == []


def test_a_file_that_says_something_else_is_kept_unless_forced(plan, tmp_path):
    (tmp_path / "launch.sh").write_text("mine")
    with pytest.raises(RefusedError, match=r"launch\.sh"):
        write_files(plan, tmp_path)
    assert (tmp_path / "launch.sh").read_text() == "mine"
    assert not (tmp_path / "template.json").exists()
    write_files(plan, tmp_path, is_forced=True)
    assert (tmp_path / "launch.sh").read_text() == plan.files["launch.sh"]


def test_a_folder_that_cannot_be_made_is_an_error(plan, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DeployError, match="cannot be written"):
        write_files(plan, tmp_path / "file" / "below")


def test_commands_run_in_the_folder_in_order(tmp_path):
    said = []
    script = ("sh", "-c", "echo x >> ran")
    run_commands((script, script), tmp_path, said.append)
    assert (tmp_path / "ran").read_text() == "x\nx\n"
    assert said[0] == "$ sh -c 'echo x >> ran'"


def test_a_missing_tool_and_a_failure_are_told_apart(tmp_path):
    with pytest.raises(MissingDependencyError, match="no-such-tool is not installed"):
        run_commands((("no-such-tool",),), tmp_path, print)
    failing = (("sh", "-c", "exit 3"), ("touch", "later"))
    with pytest.raises(DeployError, match="code 3"):
        run_commands(failing, tmp_path, print)
    assert not (tmp_path / "later").exists()
