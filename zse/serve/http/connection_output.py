"""What a connection sends: in order, together, and by the engine's thread where it may.

What a tick of the loop writes leaves in one piece. While nothing is under way a ``Shortcut`` may
write to the socket from another thread; whatever the loop sends takes the socket back first.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zse.serve.http.shortcut import Shortcut

HIGH_WATER_BYTES = 64 << 10
"""Of an answer, or of a body, that wait in this process for the other side to go on."""


class ConnectionOutput:
    """The half of a connection that writes.

    Args:
        loop: The loop that the connection belongs to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._addresses: dict[str, Any] = {}
        self.is_blocked = False
        self._unblocked: asyncio.Future[None] | None = None
        self._pending: list[bytes] = []
        self._num_pending = 0
        self._num_written = 0
        self._num_taken = 0
        self._taken_at = inf
        self._borrower: Shortcut | None = None

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait here for the client."""
        return bool(self._pending or self._transport.get_write_buffer_size())

    def seconds_untaken(self, now: float) -> float:
        """Return for how long the client has taken nothing of what waits for it.

        To be asked again and again: it is known from one call to the next.
        """
        num_waiting = self._transport.get_write_buffer_size()
        if num_waiting and self._num_written - num_waiting == self._num_taken:
            return now - self._taken_at
        self._num_taken = self._num_written - num_waiting
        self._taken_at = now
        return 0.0

    def pause_writing(self) -> None:
        self.is_blocked = True

    def resume_writing(self) -> None:
        self.is_blocked = False
        if self._unblocked is not None and not self._unblocked.done():
            self._unblocked.set_result(None)

    def write(self, data: bytes) -> None:
        """Send bytes; what one tick of the loop writes leaves together."""
        self.take_back()
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)
        self._num_pending += len(data)
        if self._num_pending > HIGH_WATER_BYTES:
            self._flush()

    def write_now(self, data: bytes) -> None:
        """Send bytes, and what waits before them: a turn of the loop sooner."""
        self.take_back()
        if self._pending:
            self._pending.append(data)
            self._num_pending += len(data)
            self._flush()
        elif not self._transport.is_closing():
            self._num_written += len(data)
            self._transport.write(data)

    def lend(self, borrower: Shortcut) -> int | None:
        """Let another thread write to the socket until this is about to.

        Returns:
            The socket's descriptor; None where bytes wait for it, or must be encrypted.
        """
        self.take_back()
        transport = self._transport
        is_quiet = not self._pending and not transport.get_write_buffer_size()
        if not is_quiet or transport.is_closing() or self._addresses["scheme"] != "http":
            return None
        self._borrower = borrower
        descriptor: int = transport.get_extra_info("socket").fileno()
        return descriptor

    def take_back(self) -> None:
        """Have a borrower write no more, and send what it could not."""
        if self._borrower is None:
            return
        borrower, self._borrower = self._borrower, None
        rest = borrower.settle()
        if rest and not self._transport.is_closing():
            self._num_written += len(rest)
            self._transport.write(rest)

    def _flush(self) -> None:
        pending = self._pending
        if not pending:
            return
        self._pending = []
        if self._transport.is_closing():
            return
        self._num_written += self._num_pending
        self._num_pending = 0
        self._transport.write(pending[0] if len(pending) == 1 else b"".join(pending))

    async def writable(self) -> None:
        """Wait until the client has taken what waits for it, or is gone."""
        while self.is_blocked:
            if self._unblocked is None or self._unblocked.done():
                self._unblocked = self._loop.create_future()
            await asyncio.shield(self._unblocked)
