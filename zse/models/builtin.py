"""Models that ship inside the package, so that nothing needs a download.

A built-in is a checkpoint in Hugging Face form, package data under ``zse/models``. Its name is
accepted wherever a path to a model is. Beside the checkpoint lies what converting it gives, so that
whoever tries zse needs nothing that only converting needs; `scripts/update_golden.py` writes it.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from zse.errors import NotFoundError

_HERE = Path(__file__).resolve().parent

BUILTIN_MODELS: MappingProxyType[str, Path] = MappingProxyType({"tiny": _HERE / "builtin_tiny"})
"""Name -> checkpoint folder."""

BUILTIN_QUANTIZATION = "int8"
"""A built-in is small enough that 8 bits cost nothing; it is the sure choice."""
_READY = f"{BUILTIN_QUANTIZATION}.zse.gz"
_REQUIRED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def builtin_checkpoint(name: str) -> Path:
    """Return the checkpoint folder of a built-in model.

    Raises:
        NotFoundError: No built-in has this name, or its files were left out of this install.
    """
    folder = BUILTIN_MODELS.get(name)
    if folder is None:
        known = ", ".join(sorted(BUILTIN_MODELS))
        raise NotFoundError(
            f"no built-in model is named {name!r}", hint=f"The built-in models are: {known}."
        )
    missing = [file for file in _REQUIRED if not (folder / file).is_file()]
    if missing:
        raise NotFoundError(
            f"the built-in model {name!r} lacks {', '.join(missing)} in {folder}",
            hint="Install the package again; its data files were left out.",
        )
    return folder


def ready_file(name: str, checkpoint: Path) -> Path | None:
    """Return the compressed .zse file of a built-in; None for what is none of them.

    It is what ``BUILTIN_QUANTIZATION`` and no other option gives.
    """
    path = checkpoint / _READY
    return path if BUILTIN_MODELS.get(name) == checkpoint and path.is_file() else None
