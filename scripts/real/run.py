"""Fetch, check and import real models: see ``scripts/real_models``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from real_catalog import checkpoint_of, file_of, models_folder, read_catalog, state_of
from real_fetch import RealModelError, make_ready

if TYPE_CHECKING:
    from pathlib import Path

    from real_catalog import RealModel

CAPTURED = "smollm2-135m"


def main() -> None:
    catalog, folder = read_catalog(), models_folder()
    options = parse(catalog)
    if options.list:
        rows = [facts_of(model, folder) for model in catalog.values()]
        print(json.dumps({"folder": str(folder), "models": rows}) if options.json else table(rows))
        return
    names = options.names or [name for name, model in catalog.items() if not model.is_large]
    rows = [fetched(catalog[name], folder) for name in ([CAPTURED] if options.capture else names)]
    if options.capture:
        from capture import TARGET, capture  # which imports torch and transformers

        capture(checkpoint_of(catalog[CAPTURED], folder))
        say(f"{TARGET}: what the tests have of {CAPTURED} is written anew")
    if options.json:
        print(json.dumps({"folder": str(folder), "models": rows}))
    else:
        print("\n".join(f"{row['name']}: {row['path']}" for row in rows))


def fetched(model: RealModel, folder: Path) -> dict[str, Any]:
    """Make a model ready and return its facts, or end the program with what failed."""
    started = time.monotonic()
    try:
        make_ready(model, folder, say)
    except RealModelError as error:
        sys.exit(f"error: {error}")
    return facts_of(model, folder) | {"seconds": round(time.monotonic() - started, 1)}


def parse(catalog: dict[str, RealModel]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/real_models", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="which; without names, all but the large ones"
    )
    parser.add_argument("--list", action="store_true", help="show what there is, fetch nothing")
    parser.add_argument(
        "--capture", action="store_true", help=f"write tests/data/smollm2 anew, from {CAPTURED}"
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in catalog]:
        parser.error(f"no model is called {unknown[0]}; there are {', '.join(catalog)}")
    return options


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def facts_of(model: RealModel, folder: Path) -> dict[str, Any]:
    path = checkpoint_of(model, folder) if model.has_checkpoint else file_of(model, folder)
    return {
        "name": model.name,
        "title": model.title,
        "license": model.license,
        "state": state_of(model, folder),
        "size_bytes": model.size_bytes,
        "sha256": model.sha256,
        "path": str(path),
    }


def table(rows: list[dict[str, Any]]) -> str:
    width = max(len(row["name"]) for row in rows)
    return "\n".join(
        f"{row['name']:<{width}}  {row['size_bytes'] / 1e6:>7,.1f} MB  {row['state']:<7}  "
        f"{row['title']} ({row['license']})"
        for row in rows
    )


if __name__ == "__main__":
    main()
