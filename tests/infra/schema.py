"""What providers allow: the files of ``schemas/``, read into trees."""

import json
from dataclasses import dataclass, field
from pathlib import Path

SCHEMAS = Path(__file__).parent / "schemas"


@dataclass(frozen=True, kw_only=True)
class Attribute:
    mode: str
    """required, optional, computed or optional+computed."""
    type: object
    """As Terraform writes types in JSON: "string", ["list", "string"]."""


@dataclass(frozen=True, kw_only=True)
class Block:
    nesting: str = "single"
    min_items: int = 0
    max_items: int = 0
    """0 is no limit."""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    blocks: dict[str, "Block"] = field(default_factory=dict)


def load_schema(provider: str) -> dict[str, Block]:
    """Return ``{"aws_lb": Block, "data.aws_region": Block, "provider": Block}``."""
    document = json.loads((SCHEMAS / f"{provider}.json").read_text())
    return {name: grow(lines) for name, lines in document.items()}


def grow(lines: dict[str, str]) -> Block:
    root = Block()
    for path in sorted(lines, key=lambda path: path.count(".")):
        *parents, name = path.split(".")
        parent = root
        for step in parents:
            parent = parent.blocks[step]
        mode, _, rest = lines[path].partition(" ")
        if mode == "block":
            nesting, least, most = rest.split()
            parent.blocks[name] = Block(nesting=nesting, min_items=int(least), max_items=int(most))
        else:
            kind = json.loads(rest) if rest.startswith("[") else rest
            parent.attributes[name] = Attribute(mode=mode, type=kind)
    return root
