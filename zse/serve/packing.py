"""Writes the modules that a start has imported into one file: see ``zse.start_pack``.

The byte code is what Python has in ``__pycache__`` already, and lies there, under the same rules:
none is written where Python writes none (``-B``, a folder that cannot be written to).
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING

from zse import start_pack
from zse.start_patterns import made_of
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import ModuleType

    from zse.start_pack import Entry
    from zse.start_patterns import Key

_BY_TIME = bytes(4)
"""Flags of byte code that is held against the time of its source (PEP 552)."""
_ENOUGH_SHARE = 0.95
"""A pack that has so much of what a start imports is left as it is."""


def refresh_pack(imported: Mapping[str, ModuleType], patterns: Collection[Key] = ()) -> bool:
    """Write a pack of what was imported, with what the one in use has; whether it was written.

    So it is with the regular expressions that were asked for. Nothing that stands in its way is an
    error.
    """
    if not _is_worth_it():
        return False
    wanted, asked = _importable(imported), set(patterns)
    used = start_pack.in_use()
    if used is not None:
        if used.patterns is not None:
            used.patterns.leave()
        known, compiled = used.index.keys() - used.stale, used.compiled
        is_enough = len(known & wanted.keys()) >= _ENOUGH_SHARE * len(wanted)
        if is_enough and len(compiled.keys() & asked) >= _ENOUGH_SHARE * len(asked):
            return False
        wanted |= {name: file for name, (file, *_) in used.index.items() if name not in wanted}
        asked |= compiled.keys()
    with contextlib.suppress(OSError):
        index, codes = _collected(wanted)
        content = start_pack.packed(index, codes, made_of(asked))
        # Who may write beside it could have changed the byte code itself, too.
        write_whole(Path(start_pack.pack_path()), content)
        return True
    return False


def _is_worth_it() -> bool:
    """Whether a pack can be written, and will be there at the next start.

    In an image, whose byte code says that no source is ever looked at, each start is the first one.
    """
    if sys.dont_write_bytecode or sys.pycache_prefix is not None or not start_pack.asked.is_set:
        return False
    folder = Path(start_pack.pack_path()).parent
    own = Path(importlib.util.cache_from_source(start_pack.__file__))
    try:
        with own.open("rb") as file:
            flags = file.read(8)[4:]
    except OSError:
        return False
    return flags == _BY_TIME and os.access(folder, os.W_OK)


def _importable(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    """Return the files of modules that came from a source with byte code."""
    found = {}
    for name, module in modules.items():
        spec = getattr(module, "__spec__", None)
        if spec is None or spec.name != name or not spec.origin:
            continue
        if isinstance(spec.loader, SourceFileLoader):
            found[name] = spec.origin
    return found


def _collected(wanted: dict[str, str]) -> tuple[dict[str, Entry], bytes]:
    index: dict[str, Entry] = {}
    codes = bytearray()
    for name, file in sorted(wanted.items()):
        is_package = file.endswith("/__init__.py")
        try:
            facts = Path(file).stat()
            code = SourceFileLoader(name, file).get_code(name)
        except (OSError, ImportError, SyntaxError):
            continue
        if code is None or not Path(importlib.util.cache_from_source(file)).is_file():
            continue  # what Python itself keeps no byte code of
        content = marshal.dumps(code)
        entry = (file, is_package, facts.st_mtime_ns, facts.st_size, len(codes), len(content))
        index[name] = entry
        codes += content
    return index, bytes(codes)
