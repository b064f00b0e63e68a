"""Write the Homebrew formula of a release: the wheel, and what it needs as locked wheels.

    scripts/homebrew.py FOLDER RELEASES     # FOLDER/zse.rb; RELEASES is where releases lie
    scripts/homebrew.py --update-lock       # infra/homebrew/wheels.*.lock anew, with pip

What images hold, too, has the images' versions. A formula names files of the Python Package Index
by the addresses that every file has there; their digests say that they are the right ones.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import zse  # noqa: E402
from zse.oci.python.wheels import canonical_name, sha256_of  # noqa: E402
from zse.oci.recipe import load_lock, write_lock  # noqa: E402
from zse.oci.statements.licences import wheel_licence  # noqa: E402

LOCKS = ROOT / "infra" / "homebrew"
PYTHON = "3.11"
MACHINES = {"amd64": ("x86_64", "on_intel"), "arm64": ("aarch64", "on_arm")}
"""Architecture -> its word in wheels, and the formula's block."""
_PLATFORMS = ("manylinux_2_31", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
_INDEX = "https://pypi.org/packages"
_HEAD = """# Made by scripts/homebrew.py of a release's wheel and its locked dependencies.
class Zse < Formula
  desc "{description}"
  homepage "{homepage}"
  url "{url}", using: :nounzip
  version "{version}"
  sha256 "{sha256}"
  license "Apache-2.0"

  depends_on :linux
  depends_on "python@{python}"
"""
_TAIL = """
  def install
    python = Formula["python@{python}"].opt_bin/"python{python}"
    system python, "-m", "venv", "--without-pip", libexec
    wheels = buildpath/"wheels"
    wheels.mkpath
    resources.each {{ |resource| resource.stage {{ wheels.install Dir["*.whl"] }} }}
    wheels.install Dir["*.whl"]
    system python, "-m", "pip", "--python", libexec/"bin/python", "install", "--no-index",
           "--no-deps", "--no-compile", *Dir[wheels/"*.whl"]
    bin.install_symlink libexec/"bin/zse"
    generate_completions_from_executable(bin/"zse", "completion", shells: [:bash, :zsh, :fish])
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/zse --version")
    assert_match "family", shell_output("#{{bin}}/zse info tiny")
  end
end
"""


def locked(architecture: str) -> list[dict[str, Any]]:
    """Return the wheels of an architecture, sorted by name."""
    return load_lock(LOCKS / f"wheels.{architecture}.lock", "wheel")


def address_of(file: str, name: str) -> str:
    """Return where the index has a file: it answers this form for every file."""
    tag = file.removesuffix(".whl").rsplit("-", 3)[1]
    return f"{_INDEX}/{tag}/{name[0]}/{name}/{file}"


def _resource(wheel: dict[str, Any], indent: str) -> str:
    rows = (
        f'resource "{wheel["name"]}" do',
        f'  url "{address_of(wheel["file"], wheel["name"])}", using: :nounzip',
        f'  sha256 "{wheel["sha256"]}"',
        "end",
    )
    return "\n" + "".join(f"{indent}{row}\n" for row in rows)


def formula(wheel: Path, releases: str) -> str:
    """Return the formula of a release's wheel.

    Raises:
        ValueError: An address or a lock holds what Ruby would read as something else.
    """
    releases = releases.rstrip("/")
    if not re.fullmatch(r"https://[A-Za-z0-9.:/_~-]+", releases):
        raise ValueError(f"{releases!r} is no https address of releases")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = _HEAD.format(
        description="LLM endpoint from one file that answers in under a second",
        homepage=releases.removesuffix("/releases/download"),
        url=f"{releases}/v{zse.__version__}/{wheel.name}",
        version=zse.__version__,
        sha256=digest,
        python=PYTHON,
    )
    assert project["license"] == "Apache-2.0"
    wheels = {name: {w["name"]: w for w in locked(name)} for name in MACHINES}
    same = [w for n, w in wheels["amd64"].items() if wheels["arm64"].get(n) == w]
    text += "".join(_resource(w, "  ") for w in same)
    for architecture, (_, block) in MACHINES.items():
        own = [w for w in wheels[architecture].values() if w not in same]
        text += f"\n  {block} do{''.join(_resource(w, '    ') for w in own)}  end\n"
    return text + _TAIL.format(python=PYTHON)


def update_lock() -> None:
    """Resolve what the base install needs, with the versions of images where these have it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins: dict[str, str] = {}
    for path in sorted(ROOT.glob("images/*/wheels.*.lock"), reverse=True):
        pins |= {w["name"]: w["version"] for w in load_lock(path, "wheel")}
    for architecture, (machine, _) in MACHINES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            wanted = "".join(f"{n}=={v}\n" for n, v in pins.items() if "+" not in v)
            (folder / "pins").write_text(wanted)
            platforms = [f"--platform={platform}_{machine}" for platform in _PLATFORMS]
            abis = [f"--abi={abi}" for abi in ("cp311", "abi3", "none")]
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:",
                 "--implementation=cp", f"--python-version={PYTHON}", *platforms, *abis,
                 "-c", "pins", "-d", ".", *project["dependencies"]],
                check=True, cwd=folder,
            )  # fmt: skip
            entries = [_entry(path) for path in folder.glob("*.whl")]
        entries.sort(key=lambda entry: str(entry["name"]))
        path = LOCKS / f"wheels.{architecture}.lock"
        write_lock(path, "wheel", entries)
        text = path.read_text().replace("zse build-image", "scripts/homebrew.py", 1)
        path.write_text(text)


def _entry(path: Path) -> dict[str, str | int]:
    name, version = path.name.split("-")[:2]
    return {
        "name": canonical_name(name),
        "version": version,
        "file": path.name,
        "sha256": sha256_of(path),
        "licence": wheel_licence(path).expression,
    }


def main(words: list[str]) -> int:
    if words == ["--update-lock"]:
        update_lock()
        return 0
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    (wheel,) = Path(words[0]).glob("*.whl")
    text = formula(wheel, words[1])
    (Path(words[0]) / "zse.rb").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
