"""One archive with which the CPU's table is measured on a host without a network.

It holds this tree, zse's kernels for this architecture, llama.cpp's programs and the pure Python
packages that write their models. The host has Python with what zse itself needs, and numpy.
"""

from __future__ import annotations

import importlib.util
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from zse.device.processor import architecture
from zse.kernels.native.build import build
from zse.kernels.native.instructions import of_architecture

if TYPE_CHECKING:
    from peers.llama_cpp import LlamaCpp

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("zse", "images", "scripts/bench", "tests/support", "pyproject.toml")
PACKAGES = ("gguf", "yaml", "tqdm")
"""Packages of the maker of models that are Python alone, or do without their compiled part."""


def pack(out: Path, llama: LlamaCpp) -> str:
    """Write the archive; it appears under its name when it is whole. Return how it is used."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PARTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    draft = out.with_name(f"{out.name}.partial")
    with tarfile.open(draft, "w:gz") as archive:
        for name in filter(None, listed.stdout.split("\0")):
            archive.add(ROOT / name, f"zse-bench/{name}", recursive=False)
        for library in build(of_architecture(architecture())):
            for part in (library, library.with_suffix(".digest")):
                archive.add(part, f"zse-bench/{part.relative_to(ROOT)}")
        archive.add(llama.folder, "zse-bench/llama")
        for package in PACKAGES:
            archive.add(folder_of(package), f"zse-bench/packages/{package}", filter=is_source)
    draft.replace(out)
    size = out.stat().st_size / 1e6
    return (
        f"{out}: {size:.1f} MB\n"
        f"tar xzf {out.name} && cd zse-bench && PYTHONPATH=packages taskset -c 0,1 \\\n"
        f"    scripts/bench/cpu.sh --llama llama --rows decode,prefill --rounds 5"
    )


def is_source(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out byte code and what was compiled for this Python."""
    leaves_out = member.name.endswith((".pyc", ".so", "__pycache__"))
    return None if leaves_out else member


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package {package} is not installed")
    return Path(spec.origin).parent
