"""Measured choices: which variant is fastest for a shape on a GPU, by the GPU's name.

A file is JSON::

    {"device": "NVIDIA H200",
     "tables": {"linear.int4.a8.rows1": {"3584x37888": {"variant": "linear....w4s1", "splits": 2}}}}

Tables of some GPUs come with zse (``zse/kernels/tuned``); a user's own, written by ``zse kernels
tune``, lie in the cache folder and win entry by entry. What no table says is up to the planner.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from zse.kernels.errors import KernelRule
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

Choice: TypeAlias = "Mapping[str, str | int]"
"""``variant``: a key; ``splits`` and the like: whole numbers."""

SHIPPED = Path(__file__).parent / "tuned"
MAX_FILE_BYTES = 1024 * 1024
_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*\Z")
_SHAPE = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*)*\Z")


@record
class Tuning:
    """The choices for one GPU."""

    device_name: str
    tables: Mapping[str, Mapping[str, Choice]]

    @classmethod
    def load(cls, device_name: str, *, cache_dir: Path | None = None) -> Tuning:
        """Read what is known about a GPU: zse's own table, then the user's over it.

        The user's are in ``Settings.cache_dir``; None leaves them out.

        Raises:
            KernelPackError: A file is broken, or is about another GPU.
        """
        folders = [SHIPPED] if cache_dir is None else [SHIPPED, cache_dir / "tuned"]
        tables: dict[str, dict[str, Choice]] = {}
        for folder in folders:
            path = folder / f"{slug(device_name)}.json"
            if path.is_file():
                for table, choices in read_tuning(path, device_name).tables.items():
                    tables.setdefault(table, {}).update(choices)
        return cls(device_name=device_name, tables=tables)

    def lookup(self, table: str, shape: str) -> Choice | None:
        """Return the choice for a shape such as ``3584x37888``; None when none was measured."""
        return self.tables.get(table, {}).get(shape)

    def to_json(self) -> bytes:
        """Return the file's bytes: sorted, one shape a line, so that a diff can be read."""
        lines = []
        for table, choices in sorted(self.tables.items()):
            rows = [
                f"   {json.dumps(shape)}: {json.dumps(dict(choice), sort_keys=True)}"
                for shape, choice in sorted(choices.items())
            ]
            lines.append(f"  {json.dumps(table)}: {{\n" + ",\n".join(rows) + "\n  }")
        body = ",\n".join(lines)
        device = json.dumps(self.device_name)
        return f'{{\n "device": {device},\n "tables": {{\n{body}\n }}\n}}\n'.encode()


def slug(device_name: str) -> str:
    """Return a file's name for a GPU: ``NVIDIA H200`` gives ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-") or "unknown"


def read_tuning(path: Path, device_name: str) -> Tuning:
    """Read and check one file.

    Raises:
        KernelPackError: It breaks a rule, or is about another GPU than ``device_name``.
    """
    size_bytes = path.stat().st_size
    if size_bytes > MAX_FILE_BYTES:
        raise KernelRule.BAD_TUNING(f"{path} has {size_bytes} bytes, the limit is {MAX_FILE_BYTES}")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise KernelRule.BAD_TUNING(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.keys() != {"device", "tables"}:
        raise KernelRule.BAD_TUNING(f"{path} is not an object with the fields device and tables")
    if document["device"] != device_name:
        raise KernelRule.BAD_TUNING(
            f"{path} is about {document['device']!r:.80}, expected {device_name!r}"
        )
    if not isinstance(document["tables"], dict):
        raise KernelRule.BAD_TUNING(f"{path}: tables is not an object")
    for table, choices in document["tables"].items():
        _check_table(path, table, choices)
    return Tuning(device_name=device_name, tables=document["tables"])


def _check_table(path: Path, table: str, choices: Any) -> None:
    if not _NAME.match(table) or not isinstance(choices, dict):
        raise KernelRule.BAD_TUNING(
            f"{path}: {table!r:.80} is not the name of an object of choices"
        )
    for shape, choice in choices.items():
        where = f"{path}: {table}, {shape!r:.80}"
        if not _SHAPE.match(shape):
            raise KernelRule.BAD_TUNING(f"{where} is not a shape such as 3584x37888")
        if not isinstance(choice, dict) or not isinstance(choice.get("variant"), str):
            raise KernelRule.BAD_TUNING(f"{where} names no variant")
        for name, value in choice.items():
            number = type(value) is int and 0 < value < 2**31
            if name != "variant" and not number:
                raise KernelRule.BAD_TUNING(
                    f"{where}: {name} is {value!r:.40}, not a whole number above 0"
                )
