"""Copy a .zse file as a fine-tune of it would be: its last groups, or named ones, hold other bytes.

    python scripts/bench/tuned_copy.py /dev/shm/7b.zse /dev/shm/7b-tuned.zse --groups 2

Digests of those groups are new and right. For ``swap.py``: what two files share is not moved.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zse.format.reader import ZSEReader
from zse.format.spec import CONTAINER, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

STEP_BYTES = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--groups", type=int, default=2, help="how many differ; 0 none")
    parser.add_argument("--names", default="", help="which differ: layers.26,layers.27")
    options = parser.parse_args()
    names = [name for name in options.names.split(",") if name]
    changed = tuned_copy(options.source, options.target, options.groups, names)
    print(f"{changed / 1e9:.3f} GB differ in {options.target}")


def tuned_copy(source: Path, target: Path, num_groups: int, names: Sequence[str] = ()) -> int:
    """Write the copy; return the bytes of the groups that differ: those named, else the last."""
    shutil.copy(source, target)
    with ZSEReader(source) as reader:
        header = reader.header
    groups = list(header.groups)
    places = {group.name: index for index, group in enumerate(groups)}
    chosen = [places[name] for name in names] or [*range(len(groups) - num_groups, len(groups))]
    with target.open("r+b") as file:
        for index in chosen:
            digest = hashlib.sha256()
            for piece in _pieces(groups[index]):
                file.seek(piece.start)
                content = bytearray(file.read(len(piece)))
                content[:64] = content[:64][::-1]  # the same numbers elsewhere: still finite
                file.seek(piece.start)
                file.write(content)
                digest.update(content)
            groups[index] = replace(groups[index], sha256=digest.hexdigest())
        file.seek(0)
        file.write(CONTAINER.seal(replace(header, groups=tuple(groups)).to_bytes()))
    return sum(groups[index].length_bytes for index in chosen)


def _pieces(group: Group) -> list[range]:
    starts = range(group.offset_bytes, group.end_bytes, STEP_BYTES)
    return [range(start, min(start + STEP_BYTES, group.end_bytes)) for start in starts]


if __name__ == "__main__":
    main()
