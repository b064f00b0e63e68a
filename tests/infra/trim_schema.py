"""Make a provider's file in ``schemas/`` from what the provider says about itself.

    terraform providers schema -json > all.json
    python tests/infra/trim_schema.py all.json aws

Only what the modules use is kept, one line an argument, so that a change of a provider is a readable diff.
"""

import argparse
import json
from pathlib import Path

import modules
from schema import SCHEMAS


def mode_of(attribute: dict) -> str:
    if attribute.get("required"):
        return "required"
    names = [name for name in ("optional", "computed") if attribute.get(name)]
    return "+".join(names)


def flatten(block: dict, prefix: str = "") -> dict[str, str]:
    """Turn a block into ``{path: "required string"}`` and ``{path: "block list 0 1"}``."""
    lines = {}
    for name, attribute in block.get("attributes", {}).items():
        kind = attribute["type"]
        text = kind if isinstance(kind, str) else json.dumps(kind, separators=(",", ":"))
        lines[prefix + name] = f"{mode_of(attribute)} {text}"
    for name, nested in block.get("block_types", {}).items():
        bounds = f"{nested.get('min_items', 0)} {nested.get('max_items', 0)}"
        lines[prefix + name] = f"block {nested['nesting_mode']} {bounds}"
        lines |= flatten(nested["block"], f"{prefix}{name}.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("provider", help="its local name, such as aws")
    arguments = parser.parse_args()
    everything = json.loads(arguments.source.read_text())
    for address, one in everything.get("provider_schemas", {}).items():
        if address.endswith(f"/{arguments.provider}"):
            everything = one
    used = sorted(name for name in modules.used_types() if name.provider == arguments.provider)
    kinds = {"resource": "resource_schemas", "data": "data_source_schemas"}
    found = {str(name): flatten(everything[kinds[name.kind]][name.type]["block"]) for name in used}
    target = SCHEMAS / f"{arguments.provider}.json"
    if target.exists():  # the provider's own settings are few, and written by hand
        found["provider"] = json.loads(target.read_text())["provider"]
    target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"{target}: {sum(map(len, found.values()))} arguments of {len(found)} types")


if __name__ == "__main__":
    main()
