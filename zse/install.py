"""How zse was installed, and the command that adds one of its extras the same way.

Every hint that speaks of installing is made here. It is read from the metadata beside the code
(PEP 610) and only when an error is made: importing this module looks at nothing.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.metadata import Distribution

DISTRIBUTION = "zse-toolkit"
"""Its name on a package index; what is imported and typed is ``zse``."""
IMAGE_FOLDER = "opt/zse/app"
"""Where an image holds the code, without the leading slash."""
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Torch built for CPUs, which converting needs: a tenth of the size of what the index holds."""

EXTRA_OF_PACKAGE: Mapping[str, str] = {
    "torch": "convert",
    "safetensors": "convert",
    "huggingface_hub": "convert",
    "transformers": "hf",
    "bitsandbytes": "hf",
    "triton": "kernels",
    "numpy": "eval",
    "gguf": "gguf",
    "llama_cpp": "llama-cpp",
    "boto3": "s3",
    "botocore": "s3",
    "modal": "modal",
    "runpod": "runpod",
    "mcp": "mcp",
}
"""Import name -> the extra that brings it."""

_WITH_TORCH = frozenset({"convert", "hf"})
_RECIPES = {
    "s3": "--recipe cuda-dev",
    "convert": "--recipe cuda-dev",
    "kernels": "--recipe cuda-dev",
}
"""What `zse build-image` is told so that the image holds what an extra brings."""


@record
class Installation:
    """Where the running code came from.

    Attributes:
        command: What adds packages there, such as ``pip install``; empty in an image, which has
            no installer.
        source: A path, or an address that pip takes; empty means a package index.
        is_editable: Whether the code is a checkout in use.
        strangers: Other distributions whose import name is ``zse`` too, with their versions.
    """

    command: str
    source: str = ""
    is_editable: bool = False
    strangers: tuple[str, ...] = ()

    def requirement(self, extra: str) -> str:
        """Return the words after the command, quoted for a shell."""
        if not self.source:
            return shlex.quote(f"{DISTRIBUTION}[{extra}]")
        if "://" in self.source:
            return shlex.quote(f"{DISTRIBUTION}[{extra}] @ {self.source}")
        words = shlex.quote(f"{self.source}[{extra}]")
        return f"-e {words}" if self.is_editable else words

    def hint(self, extra: str) -> str:
        """Return the sentence that says how to get an extra."""
        if not self.command:
            return _image_hint(extra)
        index = f"--extra-index-url {TORCH_CPU_INDEX} " if extra in _WITH_TORCH else ""
        hint = f"Install it: {self.command} {index}{self.requirement(extra)}"
        return " ".join([strangers_warning(self.strangers), hint]).strip()


def install_hint(extra: str) -> str:
    """Return how to get an extra of ``pyproject.toml`` in the environment that runs this."""
    return find_installation().hint(extra)


def find_installation(
    root: Path | None = None,
    *,
    prefix: Path | None = None,
    found: Iterable[Distribution] | None = None,
) -> Installation:
    """Find out how the code below ``root`` came here, from what is installed below ``prefix``."""
    from importlib.metadata import distributions

    root = root or Path(__file__).resolve().parents[1]
    prefix = prefix or Path(sys.prefix)
    installed = list(distributions() if found is None else found)
    ours = next((one for one in installed if _is_ours(one, root)), None)
    if ours is None and root == Path("/", IMAGE_FOLDER):
        return Installation(command="")
    source, is_editable = _source(ours, root)
    return Installation(
        command=_command(ours, prefix),
        source=source,
        is_editable=is_editable,
        strangers=_strangers(installed),
    )


def find_strangers() -> tuple[str, ...]:
    """Return the other installed distributions whose import name is ``zse``, with versions."""
    from importlib.metadata import distributions

    return _strangers(distributions())


def strangers_warning(strangers: Iterable[str]) -> str:
    """Say that another program lies in the same folder; empty when none does."""
    names = list(strangers)
    if not names:
        return ""
    return (
        f"{' and '.join(names)}, another program, is installed under the same import name: "
        f"`pip uninstall {' '.join(name.split()[0] for name in names)}` first, "
        f"then install {DISTRIBUTION} again."
    )


def _image_hint(extra: str) -> str:
    recipe = _RECIPES.get(extra)
    if recipe is None:
        return f"No image holds it. On a machine with pip: pip install '{DISTRIBUTION}[{extra}]'"
    return f"An image has no pip: build it again with `zse build-image MODEL {recipe}`."


def _is_ours(one: Distribution, root: Path) -> bool:
    if one.name != DISTRIBUTION:
        return False
    return root in {Path(str(one.locate_file(""))).resolve(), _folder(_origin(one))}


def _origin(one: Distribution) -> Mapping[str, object]:
    """Return what PEP 610 records of where a distribution came from; empty for an index."""
    try:
        said = json.loads(one.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _folder(origin: Mapping[str, object]) -> Path | None:
    address = urlsplit(str(origin.get("url", "")))
    return Path(unquote(address.path)) if address.scheme == "file" else None


def _source(ours: Distribution | None, root: Path) -> tuple[str, bool]:
    if ours is None:
        return (str(root), True) if _is_checkout(root) else ("", False)
    origin = _origin(ours)
    folder = _folder(origin)
    if folder is not None:
        return str(folder), folder == root
    url, version = str(origin.get("url", "")), origin.get("vcs_info")
    if isinstance(version, dict):
        url = f"{version.get('vcs')}+{url}@{version.get('commit_id')}"
    return url, False


def _is_checkout(root: Path) -> bool:
    project = root / "pyproject.toml"
    return project.is_file() and f'name = "{DISTRIBUTION}"' in project.read_text()


def _command(ours: Distribution | None, prefix: Path) -> str:
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx install --force"
    if (prefix / "uv-receipt.toml").is_file():
        return "uv tool install --force"
    if ours is not None and (ours.read_text("INSTALLER") or "").strip() == "uv":
        return "uv pip install"
    from shutil import which

    pip = which("pip")
    if pip is not None and Path(pip).parent == prefix / "bin":
        return "pip install"
    return f"{shlex.quote(sys.executable)} -m pip install"


def _strangers(installed: Iterable[Distribution]) -> tuple[str, ...]:
    others = [one for one in installed if one.name != DISTRIBUTION and _brings_zse(one)]
    return tuple(sorted({f"{one.name} {one.version}" for one in others}))


def _brings_zse(one: Distribution) -> bool:
    return "\nzse/__init__.py," in "\n" + (one.read_text("RECORD") or "")
