"""Kernels that were compiled before, one file each: what was interrupted goes on where it stopped.

A kernel is found again by everything that decides its code: the sources that its module imports,
its variant, the target, and the versions of the compilers. No module is imported to find out.
"""

from __future__ import annotations

import ast
import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from zse.format.header_json import dump_canonical
from zse.kernels.sources import digest_of
from zse.records import record
from zse.store.local import LocalWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_FORM = 1
_NO_INPUTS = frozenset({"key", "output"})
"""Words of a job that decide nothing about the code."""


@record
class FinishedKernels:
    """Compiled kernels in a folder."""

    folder: Path
    versions: Mapping[str, str]
    """Of the compilers."""
    roots: tuple[Path, ...]
    """Folders that modules of kernels are imported from, the first one first."""

    def find(self, job: Mapping[str, Any]) -> tuple[dict[str, Any], bytes] | None:
        """Return launch facts and code of a job that was done before; None where it was not."""
        try:
            digest, _, rest = self._path(job).read_bytes().partition(b"\n")
        except OSError:
            return None
        if hashlib.sha256(rest).hexdigest().encode() != digest:
            return None
        facts, _, code = rest.partition(b"\n")
        return json.loads(facts), code

    def keep(self, job: Mapping[str, Any], facts: Mapping[str, Any], code: bytes) -> None:
        rest = dump_canonical(facts) + b"\n" + code
        with LocalWriter(self._path(job)) as file:
            file.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)

    def _path(self, job: Mapping[str, Any]) -> Path:
        inputs = {
            "form": _FORM,
            "versions": dict(self.versions),
            "sources": sources_digest(job["module"], self.roots),
            **{name: value for name, value in job.items() if name not in _NO_INPUTS},
        }
        return self.folder / hashlib.sha256(dump_canonical(inputs)).hexdigest()


@cache
def sources_digest(module: str, roots: tuple[Path, ...]) -> str:
    """Return the SHA-256 of a module's source and of all that it imports from the same folders."""
    found: dict[str, bytes] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        path = _find(name, roots)
        if name not in found and path is not None:
            found[name] = path.read_bytes()
            todo += _imports(found[name])
    return digest_of(sorted(found.items()))


def _find(module: str, roots: Sequence[Path]) -> Path | None:
    places = (root.joinpath(*module.split(".")) for root in roots)
    paths = (path for at in places for path in (at.with_suffix(".py"), at / "__init__.py"))
    return next((path for path in paths if path.is_file()), None)


def _imports(source: bytes) -> Iterator[str]:
    """Yield every name that may be a module; a source that cannot be read imports nothing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
