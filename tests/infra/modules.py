"""The project's modules and examples, as python-hcl2 reads them."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hcl2

TERRAFORM = Path(__file__).parents[2] / "infra" / "terraform"
MODULES = sorted(path for path in (TERRAFORM / "modules").iterdir() if path.is_dir())
EXAMPLES = sorted(path for path in (TERRAFORM / "examples").iterdir() if path.is_dir())
REPOSITORY_EXAMPLES = sorted(
    path.parent for path in (TERRAFORM.parents[1] / "examples" / "terraform").rglob("main.tf")
)
FOLDERS = [*MODULES, *EXAMPLES, *REPOSITORY_EXAMPLES]


@dataclass(frozen=True, order=True)
class TypeName:
    """A kind of resource or data source."""

    kind: str
    type: str

    @property
    def provider(self) -> str:
        return self.type.partition("_")[0]

    def __str__(self) -> str:
        return self.type if self.kind == "resource" else f"data.{self.type}"


def label(text: str) -> str:
    return text.strip('"')


@cache
def read(folder: Path) -> dict[str, list]:
    """Return the blocks of all files of a folder: ``{"variable": [...], "resource": [...]}``."""
    found: dict[str, list] = {}
    for path in sorted(folder.glob("*.tf")):
        with path.open() as stream:
            for kind, blocks in hcl2.load(stream).items():
                if isinstance(blocks, list):  # the rest is the parser's own notes
                    found.setdefault(kind, []).extend(blocks)
    return found


def text_of(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.tf")))


def named(folder: Path, kind: str) -> dict[str, dict]:
    """Return blocks with one label: variables, outputs, modules, providers."""
    return {label(n): body for block in read(folder).get(kind, []) for n, body in own(block)}


def things(folder: Path) -> list[tuple[TypeName, str, dict]]:
    """Return resources and data sources: type, name, body."""
    return [
        (TypeName(kind, label(type_)), label(name), body)
        for kind in ("resource", "data")
        for block in read(folder).get(kind, [])
        for type_, names in own(block)
        for name, body in own(names)
    ]


def own(block: dict) -> list[tuple[str, object]]:
    """Return the entries of a block without what the parser adds."""
    return [(name, value) for name, value in block.items() if not name.startswith("__")]


def used_types() -> set[TypeName]:
    return {name for folder in FOLDERS for name, _, _ in things(folder)}
