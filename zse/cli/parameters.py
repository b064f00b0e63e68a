"""Arguments and options that several commands have: their names, help and completion, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def complete_model(incomplete: str) -> list[str]:
    """Offer built-in models, and what lies here; where only files are left, a shell does better."""
    from zse.models.builtin import BUILTIN_MODELS

    names = [name for name in BUILTIN_MODELS if name.startswith(incomplete)]
    here = [path for path in Path().glob(f"{incomplete}*") if not path.name.startswith(".")]
    files = [f"{path}/" if path.is_dir() else str(path) for path in sorted(here)]
    return [*names, *files] if names else []


_MODEL = Argument(
    metavar="MODEL",
    help='A .zse file, a checkpoint folder, a hub id, an address, or "tiny", the built-in one.',
    autocompletion=complete_model,
)
Model = Annotated[str, _MODEL]
OptionalModel = Annotated[str | None, _MODEL]
Url = Annotated[str, Argument(metavar="URL", help="An address, or a path.")]
AllowNoTokenizer = Annotated[
    bool, Option("--allow-no-tokenizer", help="Take a model that has no tokenizer.")
]
Gpus = Annotated[list[str] | None, Option("--gpu", metavar="ARCH", help="Only these.  [all]")]
Resume = Annotated[
    bool,
    Option(
        "--resume", help="Go on with what a killed run left; keep what is done if this run fails."
    ),
]
Force = Annotated[bool, Option("--force", help="Replace what is there and is something else.")]
Json = Annotated[bool, Option("--json", help="Print JSON on stdout.")]
Quant = Annotated[str | None, Option(help="How to quantize a MODEL that is not a .zse file.")]
