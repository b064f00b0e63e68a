"""The audit log of a running server: the last entries in memory, all of them in files.

Nobody waits for a disk: a thread writes, and what it has not written yet is bounded. A disk that
fails ends no request; the log of the server says so, once until it works again.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING

from zse.serve.audit.entry import encode_line

if TYPE_CHECKING:
    from zse.serve.audit.entry import AuditEntry
    from zse.serve.audit.files import AuditFiles

LOG = logging.getLogger("zse.serve")
NUM_REMEMBERED = 1000
MAX_WAITING = 65_536
"""Entries that wait for the disk; more are lost, and counted."""
_MAX_BATCH = 256
CLOSE_SECONDS = 5.0
FLUSH_SECONDS = 1.0


class AuditLog:
    """Takes entries from the event loop.

    Args:
        files: Where they are kept; None remembers the last ones only.
    """

    def __init__(self, files: AuditFiles | None = None) -> None:
        self.files = files
        self.num_added = 0
        """Since the start of the server."""
        self.num_lost = 0
        """Of these, those that no file holds, though one was to."""
        self._recent: deque[AuditEntry] = deque(maxlen=NUM_REMEMBERED)
        self._waiting: queue.Queue[AuditEntry | None] = queue.Queue(MAX_WAITING)
        self._writer: threading.Thread | None = None
        self._is_failing = False

    def add(self, entry: AuditEntry) -> None:
        """Take an entry; it is written soon."""
        self.num_added += 1
        self._recent.append(entry)
        if self.files is None:
            return
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="audit", daemon=True)
            self._writer.start()
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            self.num_lost += 1

    def recent(self, count: int = NUM_REMEMBERED) -> list[AuditEntry]:
        """Return the last entries, the newest first."""
        entries = list(self._recent)
        return entries[: -count - 1 : -1]

    def flush(self) -> None:
        """Wait until what was added is written, a second at most."""
        with self._waiting.all_tasks_done:
            self._waiting.all_tasks_done.wait_for(
                lambda: not self._waiting.unfinished_tasks, FLUSH_SECONDS
            )

    def clear(self, *, packed_too: bool) -> None:
        """Forget what is remembered, and what the files hold.

        Raises:
            OSError: The files cannot be changed.
        """
        self.flush()
        self._recent.clear()
        if self.files is not None:
            self.files.clear(packed_too=packed_too)

    def close(self) -> None:
        """Write what waits, as far as the disk takes it within some seconds."""
        if self._writer is None:
            return
        try:
            self._waiting.put(None, timeout=CLOSE_SECONDS)
            self._writer.join(CLOSE_SECONDS)
        except queue.Full:
            LOG.warning("the disk took no more of the audit log")
        self._writer = None

    def _write(self) -> None:
        is_open = True
        while is_open:
            batch = [self._waiting.get()]
            while len(batch) < _MAX_BATCH and not self._waiting.empty():
                batch.append(self._waiting.get())
            is_open = None not in batch
            self._keep([encode_line(entry) for entry in batch if entry is not None])
            for _ in batch:
                self._waiting.task_done()

    def _keep(self, lines: list[bytes]) -> None:
        if self.files is None or not lines:
            return
        try:
            self.files.append(lines)
        except OSError as error:
            self.num_lost += len(lines)
            if not self._is_failing:
                LOG.error("the audit log cannot be written: %s", error)  # noqa: TRY400
            self._is_failing = True
        else:
            self._is_failing = False
