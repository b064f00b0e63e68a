"""The entry points are what ``zse deploy`` writes for the options that their README names."""

import re
import shlex
from pathlib import Path

import pytest

from zse.cli import run

pytestmark = pytest.mark.usefixtures("unread_images")
FUNCTIONS = Path(__file__).parents[2] / "functions"


def commands() -> list[list[str]]:
    """Return the commands of the README, without their first word."""
    text = re.search(r"```bash\n(.*?)```", (FUNCTIONS / "README.md").read_text(), re.S)[1]
    lines = text.replace("\\\n", " ").splitlines()
    image = lines[0].split('"')[1]
    return [shlex.split(line.replace("$IMAGE", image), comments=True)[1:] for line in lines[1:]]


@pytest.mark.parametrize(
    ("index", "names"),
    [
        (0, {"app.py": "modal/server.py"}),
        (1, {"app.py": "modal/cls.py"}),
        (
            2,
            {
                name: f"runpod/{name}"
                for name in ("handler.py", "Dockerfile", ".runpod/hub.json", ".runpod/tests.json")
            },
        ),
        (3, {"overlays/ray/ray_app.py": "ray/ray_app.py"}),
    ],
)
def test_an_entry_point_is_what_the_command_of_the_readme_writes(index, names, tmp_path, capsys):
    assert run([*commands()[index], "--output", str(tmp_path)]) == 0
    capsys.readouterr()
    for written, kept in names.items():
        assert (tmp_path / written).read_text() == (FUNCTIONS / kept).read_text(), kept


def test_entry_points_stay_under_a_hundred_lines():
    for path in FUNCTIONS.rglob("*.py"):
        assert len(path.read_text().splitlines()) < 100, path
