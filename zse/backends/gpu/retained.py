"""A backend whose model leaves for one of the same shape, which takes it over as it stands.

Its memory, kernels, tables and captured steps depend on the shape of a model and on addresses. The
weights of the next one go where those of the last one lie, group by group; a group with the same
digest is there already. So fine-tunes of one base change places without moving what they share.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from zse.backends.gpu.arrival import Arrival
from zse.backends.gpu.key_factors import read_key_factors
from zse.device.phases import Phases, no_phases
from zse.errors import ZSEError
from zse.format.reader import ZSEReader
from zse.stream.opening import source_of
from zse.stream.placement import WholeFile

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from zse.backends.gpu.backend import GPUBackend
    from zse.format.model_file import ModelFile
    from zse.format.spec import TensorEntry, ZSEHeader

_KEPT_SHAPES = 16
_OF_THE_ENGINE = ("bos_token_id", "eos_token_ids")
"""What of a model's configuration no backend looks at."""


class FileShapes:
    """All of a header that a backend is made of, which excludes the bytes of weights.

    A header that is read again is the same object, so its shape is found once; equal ones are the
    same object, too.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ZSEHeader, object]] = {}
        """By the header's identity, which is nobody else's while it is kept here."""

    def of(self, header: ZSEHeader) -> object:
        known = self._known.get(id(header))
        if known is None:
            if len(self._known) >= _KEPT_SHAPES:
                self._known.clear()
            found = _shape_of(header)
            shape = next((one for _, one in self._known.values() if one == found), found)
            known = self._known[id(header)] = header, shape
        return known[1]


class Retained:
    """Holds a backend from the end of its model until another takes it, or until it is given up.

    Args:
        backend: Its model still runs, and will be closed.
        is_narrow: Whether keys are kept in few bits, so that constants in biases matter.
    """

    def __init__(self, backend: GPUBackend, header: ZSEHeader, *, is_narrow: bool) -> None:
        self.backend = backend
        self._header = header
        self._is_narrow = is_narrow
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_over = False
        self._begun: Arrival | None = None

    def takes(self, file: Path) -> bool:
        """Whether a model's file has the same shape; a file that cannot be read has not."""
        try:
            with ZSEReader(file) as reader:
                return self._takes(reader)
        except (ZSEError, OSError):
            return False

    def changed_groups(self, header: ZSEHeader) -> list[str]:
        """Return the groups of a file of the same shape whose bytes are not on the device.

        A digest that is nothing but zeros was left out: it says nothing.
        """
        here = {group.name: group.sha256 for group in self._header.groups}
        return [
            group.name
            for group in header.groups
            if not group.sha256.strip("0") or group.sha256 != here[group.name]
        ]

    def bytes_of(self, groups: Collection[str]) -> int:
        """Return how many bytes some groups are."""
        return sum(one.length_bytes for one in self._header.groups if one.name in groups)

    def close(self) -> None:
        """Note that its model has ended all it did: another one may have it from now on."""
        self._is_closed = True

    def take(self) -> bool:
        """Take it, once; whether it is there to be taken."""
        with self._lock:
            is_there = self._is_closed and not self._is_over
            self._is_over = self._is_over or is_there
        return is_there

    def begin(self, file: Path, *, phases: Phases = no_phases) -> None:
        """Send a file's weights on their way before its load begins, once this model has ended.

        What goes wrong is told when the load comes, which makes everything anew then.
        """
        if not self.take():
            return
        try:
            with ZSEReader(file) as reader:
                self._begun = Arrival.into(self, reader, phases=phases)
        except (ZSEError, OSError):
            with contextlib.suppress(ZSEError):
                self.backend.gpu.close()

    def claim(self, reader: ModelFile, *, phases: Phases = no_phases) -> Arrival | None:
        """Return a file's weights on their way, begun now if they were not before.

        None where it is not there to be taken, or what was begun is another file of that name.

        Raises:
            StoreError: The file cannot be read.
        """
        begun = self._take_begun()
        if begun is not None:
            if begun.placement.header == reader.header.loaded():
                return begun
            begun.abandon()
            return None
        return Arrival.into(self, reader, phases=phases) if self.take() else None

    def give_up(self) -> None:
        """Give its memory back, unless somebody has taken it or its model still has it."""
        begun = self._take_begun()
        if begun is not None:
            begun.abandon()
        elif self.take():
            self.backend.gpu.close()

    def _take_begun(self) -> Arrival | None:
        with self._lock:
            begun, self._begun = self._begun, None
        return begun

    def _takes(self, reader: ModelFile) -> bool:
        header = reader.header.loaded()
        shapes = self.backend.file_shapes
        if shapes.of(header) != shapes.of(self._header):
            return False
        if not self._is_narrow:
            return True
        source = source_of(reader)
        try:
            factors = read_key_factors(source, header, self.backend.spec)
        finally:
            source.close()
        return factors == self.backend.key_factors


def _shape_of(header: ZSEHeader) -> object:
    origin = WholeFile(header).origin_bytes
    config = {name: value for name, value in header.model_config.items()
              if name not in _OF_THE_ENGINE}  # fmt: skip
    groups = [(one.name, one.offset_bytes - origin, one.length_bytes) for one in header.groups]
    return header.architecture, config, groups, [_place(one, origin) for one in header.tensors]


def _place(entry: TensorEntry, origin: int) -> object:
    parts = [
        (part.role, part.dtype, part.shape, part.offset_bytes - origin, part.length_bytes)
        for part in entry.parts
    ]
    return entry.name, entry.scheme, entry.shape, entry.group_size, parts
