"""Writes a .zse file once, in order, under a temporary name.

The plan fixes every offset before the first tensor, so the header's space is kept at the front and
nothing moves. In exchange, all shapes and schemes must be known before the first byte is written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zse.errors import DiskFullError
from zse.format.errors import Misuse
from zse.format.layout import Layout, PlannedFile, PlannedTensor, plan_layout
from zse.format.names import check_section_name
from zse.format.partial import PartialFile
from zse.format.spec import CONTAINER, Group, TensorEntry, TensorPart, ZSEHeader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typing_extensions import Buffer

_HASH_CHUNK = 8 * 1024 * 1024
_HASHED_BESIDE_BYTES = 1 << 20
"""Of a part from here on the digest is counted while it is written; handing over what is smaller
takes as long as the digest does."""


class Stage(StrEnum):
    """What a writer accepts next."""

    SECTIONS = "sections"
    PLAN = "plan"
    TENSORS = "tensors"
    CLOSED = "closed"


class ZSEWriter:
    """Writes one file: sections, then a plan, then the tensors in planned order.

    The file appears under its name only when ``close`` succeeds. Leaving the ``with`` block by an
    exception removes the partial file, unless it is kept for a resume.

    Args:
        architecture: Model family, such as ``llama``.
        provenance: Where the model came from, as JSON values. It must not depend on the clock or
            on the machine, or the file is not reproducible.
        resume: Go on with a partial file left by a writer with the same plan, if there is one, and
            keep the partial file when this run fails.

    Raises:
        NotFoundError: The folder does not exist.
        UsageError: Another process is writing the same file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        architecture: str,
        model_config: Mapping[str, Any],
        provenance: Mapping[str, Any],
        resume: bool = False,
    ) -> None:
        self.path = Path(path)
        self.stage = Stage.SECTIONS
        self._planned = PlannedFile(
            architecture=architecture, model_config=model_config, provenance=provenance
        )
        self._resume = resume
        self._sections: list[tuple[str, bytes]] = []
        self._layout: Layout | None = None
        self._plan_digest = ""
        self._finished: list[tuple[str, str]] = []
        self._steps: Iterator[tuple[Group, TensorEntry, TensorPart]] = iter(())
        self._current: tuple[Group, TensorEntry, TensorPart] | None = None
        self._rows_written = 0
        self._group_hash = hashlib.sha256()
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="zse-hash")
        self._file = PartialFile(self.path)

    # --- stages ---------------------------------------------------------------------------------

    def add_section(self, name: str, data: bytes) -> None:
        """Carry a metadata file, such as ``tokenizer.json``, as it is.

        Raises:
            UnsafeSectionName: The name is not a plain relative path.
            UsageError: The plan was made already.
        """
        self._expect(Stage.SECTIONS, "add_section")
        check_section_name(name)
        self._sections.append((name, bytes(data)))

    def plan(self, groups: Sequence[tuple[str, Sequence[PlannedTensor]]]) -> None:
        """Lay the file out and write everything before the tensors.

        Args:
            groups: ``(name, tensors)`` in execution order.

        Raises:
            DiskFullError: The file system has less room than the file takes.
            FormatError: A name, shape or group size is not allowed.
        """
        self._expect(Stage.SECTIONS, "plan")
        self.stage = Stage.PLAN
        layout = plan_layout(replace(self._planned, sections=self._sections, groups=groups))
        self._layout = layout
        self._plan_digest = hashlib.sha256(layout.header.to_bytes()).hexdigest()
        self._finished = self._recover(layout) if self._resume else []
        if self._finished:
            last = layout.header.groups[len(self._finished) - 1]
            self._check_room(layout.file_size_bytes - last.end_bytes)
            self._file.restart_at(last.end_bytes)
        else:
            self._check_room(layout.file_size_bytes)
            self._write_front(layout)
        self._steps = (
            (group, entry, part)
            for group in layout.header.groups[len(self._finished) :]
            for entry in layout.members[group.name]
            for part in entry.parts
        )
        self.stage = Stage.TENSORS
        self._advance()

    @property
    def completed_groups(self) -> frozenset[str]:
        """Names of the groups that are already in the file; after ``plan``, those to skip."""
        return frozenset(name for name, _ in self._finished)

    def write_part(self, name: str, role: str, data: Buffer, *, row_offset: int = 0) -> None:
        """Write the next part, or the next rows of it.

        Args:
            role: The part, such as ``qweight``.
            data: Contiguous little-endian bytes of whole rows (along the first dimension).
            row_offset: The first of these rows; rows come in order without a gap.

        Raises:
            UsageError: Another part or row is due, or the rows do not fit.
            DiskFullError: No room is left.
        """
        self._expect(Stage.TENSORS, f"write_part({name!r}, {role!r})")
        if self._current is None:
            raise Misuse.WRITER_STAGE(f"{name}/{role}: every planned part is written already")
        group, entry, part = self._current
        if (name, role) != (entry.name, part.role):
            raise Misuse.WRITER_STAGE(
                f"{name}/{role} is out of order: expected {entry.name}/{part.role}"
            )
        view = memoryview(data).cast("B")
        row_bytes = part.length_bytes // part.shape[0]
        rows, rest = divmod(len(view), row_bytes)
        if row_offset != self._rows_written or rest or row_offset + rows > part.shape[0]:
            raise Misuse.WRITER_STAGE(
                f"{name}/{role}: got {len(view)} bytes at row {row_offset}; expected rows of "
                f"{row_bytes} bytes from row {self._rows_written}, {part.shape[0]} rows in all"
            )
        if row_offset == 0:
            self._pad_until(part.offset_bytes)
        self._put(view)
        self._rows_written += rows
        if self._rows_written == part.shape[0]:
            self._rows_written = 0
            self._advance(group)

    def close(self) -> ZSEHeader:
        """Write the header with its digests, sync, and give the file its name.

        Returns:
            The header as written.

        Raises:
            UsageError: No plan was made, or a planned part is missing.
        """
        self._expect(Stage.TENSORS, "close")
        if self._current is not None:
            _, entry, part = self._current
            raise Misuse.WRITER_STAGE(
                f"close: {entry.name}/{part.role} has {self._rows_written} of {part.shape[0]} rows"
            )
        assert self._layout is not None  # made before this stage
        planned, digests = self._layout.header, dict(self._finished)
        groups = tuple(replace(group, sha256=digests[group.name]) for group in planned.groups)
        header = replace(planned, groups=groups)
        raw = header.to_bytes()
        self._file.write_at_start(CONTAINER.seal(raw))
        self._file.publish()
        self.stage = Stage.CLOSED
        return header

    def abort(self) -> None:
        """Give up; the partial file is kept only for a resume. Does nothing once closed."""
        if self.stage is not Stage.CLOSED:
            self.stage = Stage.CLOSED
            self._file.abandon(keep=self._resume)
        self._hashing.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.stage is not Stage.CLOSED:
            try:
                self.close()
            except BaseException:
                self.abort()
                raise
        self.abort()

    # --- inside ---------------------------------------------------------------------------------

    def _expect(self, stage: Stage, call: str) -> None:
        if self.stage is not stage:
            raise Misuse.WRITER_STAGE(
                f"{call} belongs to stage {stage}, but the stage is {self.stage}"
            )

    def _check_room(self, needed_bytes: int) -> None:
        # Blocks that the partial file already holds are reused or freed by this run.
        held_bytes = os.fstat(self._file.fd).st_blocks * 512 if not self._finished else 0
        free_bytes = shutil.disk_usage(self.path.parent).free + held_bytes
        if needed_bytes > free_bytes:
            raise DiskFullError(
                f"{self.path} needs {needed_bytes} more bytes, but {free_bytes} are free"
            )

    def _write_front(self, layout: Layout) -> None:
        self._file.restart_at(0)
        for section, (_, data) in zip(layout.header.sections, self._sections, strict=True):
            self._pad_until(section.offset_bytes)
            self._file.write(data)
        starts = [group.offset_bytes for group in layout.header.groups]
        self._pad_until(min(starts, default=layout.file_size_bytes))
        self._group_hash = hashlib.sha256()

    def _put(self, view: memoryview) -> None:
        """Write bytes of a group, and have them in its digest."""
        if len(view) < _HASHED_BESIDE_BYTES:
            self._file.write(view)
            self._group_hash.update(view)
            return
        hashed = self._hashing.submit(self._group_hash.update, view)
        try:
            self._file.write(view)
        finally:
            hashed.result()  # the bytes are the caller's again from here on

    def _pad_until(self, offset_bytes: int) -> None:
        for zeros in self._file.write_zeros_until(offset_bytes):
            self._group_hash.update(zeros)

    def _advance(self, written: Group | None = None) -> None:
        self._current = next(self._steps, None)
        if written is None or (self._current and self._current[0] is written):
            return
        self._pad_until(written.end_bytes)
        self._finished.append((written.name, self._group_hash.hexdigest()))
        self._group_hash = hashlib.sha256()
        self._file.write_journal(self._plan_digest, self._finished)

    def _recover(self, layout: Layout) -> list[tuple[str, str]]:
        """Return the leading groups of the partial file whose bytes are what the journal says."""
        good: list[tuple[str, str]] = []
        for group, (name, digest) in zip(
            layout.header.groups, self._file.read_journal(self._plan_digest) or (), strict=False
        ):
            if name != group.name or _digest_of_range(self._file.fd, group) != digest:
                break
            good.append((name, digest))
        return good


def _digest_of_range(fd: int, group: Group) -> str:
    digest = hashlib.sha256()
    offset = group.offset_bytes
    while offset < group.end_bytes:
        chunk = os.pread(fd, min(_HASH_CHUNK, group.end_bytes - offset), offset)
        if not chunk:
            return ""
        digest.update(chunk)
        offset += len(chunk)
    return digest.hexdigest()
