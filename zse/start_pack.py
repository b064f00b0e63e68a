"""The modules of a start from one file: a read in place of thousands of questions to a file system.

Python looks for each module in each folder of its path, asks for the times of its source and of its
byte code, opens, reads and closes. A start has 400 of them. The pack holds their byte code as it
stands in ``__pycache__``, and lies there; ``zse.serve.packing`` writes it behind a start. What a
source says wins: a module whose file is another one since is imported as ever. Beside them lie the
regular expressions that a start asks for, compiled (``zse.start_patterns``).
"""

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader

TYPE_CHECKING = False  # without importing ``typing``
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType, ModuleType
    from typing import TypeAlias

    from zse.start_patterns import Key, Made, Patterns

    Entry: TypeAlias = tuple[str, bool, int, int, int, int]
    """File, whether it is a package, the file's time and size, place and length of its code."""

_LENGTH_BYTES = 8
_OTHERS_MAY_WRITE = 0o022


class PackedLoader(SourceFileLoader):
    """Loads as a source file does, but has its code already."""

    def __init__(self, name: str, path: str, code: memoryview) -> None:
        super().__init__(name, path)
        self._packed = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code; only once, since what it is made of is let go."""
        packed, self._packed = self._packed, memoryview(b"")
        if not packed:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(packed)
        return code


class Pack:
    """Finds modules in a pack; one of ``sys.meta_path``."""

    def __init__(
        self, index: Mapping[str, Entry], codes: memoryview, patterns: Mapping[Key, Made]
    ) -> None:
        self.index = index
        self.compiled = patterns
        self.patterns: Patterns | None = None
        """These at work; None before, and where there are none."""
        self.stale: set[str] = set()
        """Modules whose files are others than those that were packed."""
        self._codes = codes

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - what a finder is asked with
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return how a module is loaded; None leaves it to whoever is asked next."""
        entry = self.index.get(name)
        if entry is None:
            return None
        file, is_package, time_ns, size_bytes, offset, length = entry
        try:
            found = os.stat(file)  # noqa: PTH116 - before there is a pathlib
        except OSError:
            found = None
        if found is None or (found.st_mtime_ns, found.st_size) != (time_ns, size_bytes):
            self.stale.add(name)
            return None
        loader = PackedLoader(name, file, self._codes[offset : offset + length])
        spec = ModuleSpec(name, loader, origin=file, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [file.rpartition("/")[0]]
        return spec


class _Asked:
    """Whether this process would have used a pack."""

    is_set = False


asked = _Asked()


def pack_path() -> str:
    """Return where the pack of this Python lies, whether or not it is there."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - as above
    return f"{folder}/__pycache__/start.{sys.implementation.cache_tag}.pack"


def key() -> tuple[bytes, str, int, tuple[str, ...]]:
    """Return what must be the same where a pack is made and where it is used."""
    return MAGIC_NUMBER, sys.version, sys.flags.optimize, tuple(sys.path)


def use_pack(path: str = "") -> Pack | None:
    """Import from a pack from now on, where there is one that can be trusted."""
    asked.is_set = True
    try:
        descriptor = os.open(path or pack_path(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb", 0) as file:
        facts = os.fstat(descriptor)
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & _OTHERS_MAY_WRITE:
            return None
        content = memoryview(file.read())
    pack = _read(content)
    if pack is not None:
        sys.meta_path.insert(0, pack)
        if pack.compiled:
            from zse.start_patterns import Patterns  # of the pack, as what it imports

            pack.patterns = Patterns(pack.compiled)
            pack.patterns.use()
    return pack


def in_use() -> Pack | None:
    """Return the pack that modules are imported from."""
    return next((one for one in sys.meta_path if isinstance(one, Pack)), None)


def _read(content: memoryview) -> Pack | None:
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    try:
        found_key, index, patterns = marshal.loads(content[_LENGTH_BYTES:start])
        end = max((offset + length for *_, offset, length in index.values()), default=0)
    except (AttributeError, EOFError, TypeError, ValueError):
        return None
    if found_key != key() or len(content) != start + end:
        return None
    return Pack(index, content[start:], patterns)


def packed(
    index: Mapping[str, Entry], codes: bytes, patterns: Mapping[Key, Made] | None = None
) -> bytes:
    """Return the bytes of a pack."""
    entries: dict[str, Entry] = dict(index)
    head = marshal.dumps((key(), entries, dict(patterns or {})))
    return len(head).to_bytes(_LENGTH_BYTES, "little") + head + codes
