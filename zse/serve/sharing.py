"""A ready server shares its own file with replicas that start: ranges, from a port of its own.

It must never slow answers down: a few threads serve a bounded number of connections, at a lower
priority, and the kernel sends pages of the file without Python touching them (``sendfile``). Nobody
gets a byte without the peers' secret, and nothing can be asked for but this one file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from typing import TYPE_CHECKING

from zse.format.reader import ZSEReader
from zse.serve.sockets import bind_socket
from zse.stream.peers.keeping import KeepingSource
from zse.stream.peers.opening import identity_of
from zse.stream.peers.peer import PATH
from zse.stream.peers.proof import (
    PROOF_HEADER,
    PeerProofError,
    RequestCheck,
    answer_proof,
    read_secret,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.format.model_file import ModelFile
    from zse.format.reader import OpenFile
    from zse.serve.state import LoadedModel
    from zse.server_options import ServeOptions

LOG = logging.getLogger("zse.serve")
IDLE_SECONDS = 30.0
"""How long a connection may say nothing, or take nothing."""
_FIRST_SECONDS = 5.0
"""Within which a connection must have asked once: until then it may be anybody's."""
_BUSY_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
"""Before the next look where a connection could not be taken, as when descriptors have run out."""
_MOST_TURNED_AWAY = 32
_MAX_HEAD_BYTES = 8192
_PIECE_BYTES = 1 << 20
_NICENESS = 10
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
_REQUEST = re.compile(r"GET (/[!-~]{0,200}) HTTP/1\.1")
_TRAFFIC_CLASS = 0x20
"""CS1 of DiffServ, for what gives way to everything else."""


def begin_sharing(model: LoadedModel, options: ServeOptions) -> Sharing | None:
    """Share a loaded model's file, which is completed before that if a GPU was fed from afar.

    Raises:
        UsageError: The port is taken, or there is no secret.
        StoreError, FormatError, OSError: What is missing of the file cannot be had.
    """
    peering = options.peering
    reader = model.resources[0] if model.resources else None
    file = None if reader is None else _file_of(reader)
    if reader is None or file is None:
        LOG.warning(
            "weights are not shared: the file is not on this machine",
            extra={"hint": "Give the cache room, or serve the file from a volume."},
        )
        return None
    sharing = Sharing(
        file,
        identity_of(reader.header),
        host=options.host,
        port=peering.share_port,
        secret=read_secret(peering.secret, peering.secret_file),
        most_connections=peering.share_connections,
        most_bytes_a_second=peering.share_gbit * 1e9 / 8,
    )
    LOG.info("weights are shared", extra={"port": sharing.port})
    return sharing


def _file_of(reader: ModelFile) -> OpenFile | None:
    if isinstance(reader, ZSEReader):
        return reader.share_file()
    source = getattr(reader, "source", None)
    return source.finish(reader.header) if isinstance(source, KeepingSource) else None


class Sharing:
    """Serves one file until it is closed.

    Args:
        file: Taken over.
        identity: SHA-256 of its header.
        host, port: Where it listens; port 0 is a free one.
        secret: What replicas know.
        most_connections: At once; others are told to come again.
        most_bytes_a_second: Of all connections together; 0 is no limit.

    Raises:
        UsageError: The address cannot be bound.
    """

    def __init__(
        self,
        file: OpenFile,
        identity: str,
        *,
        host: str,
        port: int,
        secret: bytes,
        most_connections: int = 8,
        most_bytes_a_second: float = 0.0,
    ) -> None:
        self._file = file
        self._size_bytes, _ = file.opened_state
        self._path = PATH + identity
        self._secret = secret
        self._check = RequestCheck(secret)
        most = (most_connections, _MOST_TURNED_AWAY)
        self._rooms = [threading.BoundedSemaphore(each) for each in most]
        """For those that are served, and for those that are told to come again."""
        self._pace = _Pace(most_bytes_a_second)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self.num_bytes = 0
        """Sent so far."""
        self._listener = bind_socket(host, port)
        self._listener.listen(64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="peers-listen", daemon=True).start()

    def close(self) -> None:
        """Stop: connections are cut, and those that read go on elsewhere."""
        with self._lock:
            self._is_closed = True
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    # --- in threads of its own ------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                time.sleep(_PAUSE_SECONDS)
                continue
            room = next((each for each in self._rooms if each.acquire(blocking=False)), None)
            if room is None:
                connection.close()
                continue
            with self._lock:
                self._open.add(connection)
            work = self._serve if room is self._rooms[0] else self._turn_away
            thread = threading.Thread(
                target=self._within, args=(work, room, connection), name="peers-share", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no more threads
                self._end(connection, room)
        self._file.close()

    def _within(
        self,
        work: Callable[[socket.socket], None],
        room: threading.Semaphore,
        connection: socket.socket,
    ) -> None:
        try:
            work(connection)
        except OSError:
            pass  # it left, or took too long
        finally:
            self._end(connection, room)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _TRAFFIC_CLASS)
        file = self._file.share()  # whose number stays its own until the last piece is sent
        try:
            # Or the end of each range waits for the other side's late acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            seconds = _FIRST_SECONDS
            while not self._is_closed and self._answer(connection, file.fd, seconds):
                seconds = IDLE_SECONDS
        finally:
            file.close()

    def _answer(self, connection: socket.socket, file: int, seconds: float) -> bool:
        """Answer one request, which comes within some seconds; return whether another may."""
        head = _read_head(connection, seconds)
        if not head:
            return False
        connection.settimeout(IDLE_SECONDS)
        first_line, _, lines = head.partition("\r\n")
        request = _REQUEST.fullmatch(first_line)
        headers = _headers_of(lines)
        if request is None:
            return _refuse(connection, 400, "Bad Request")
        try:
            nonce = self._check.check(request[1], headers)
        except PeerProofError as error:
            LOG.info("a request for weights was refused: %s", error)
            return _refuse(connection, 401, "Unauthorized")
        if request[1] != self._path:
            return self._say(connection, nonce, 404, "Not Found", "")
        span = _RANGE.fullmatch(headers.get("range", ""))
        first, last = (int(span[1]), int(span[2])) if span else (1, 0)
        if not first <= last < self._size_bytes:
            return self._say(connection, nonce, 416, "Out Of Range", f"bytes */{self._size_bytes}")
        told = f"bytes {first}-{last}/{self._size_bytes}"
        self._say(connection, nonce, 206, "Partial Content", told, last + 1 - first)
        self._send(connection, file, first, last + 1)
        return True

    def _say(
        self,
        connection: socket.socket,
        nonce: str,
        status: int,
        words: str,
        content_range: str,
        length: int = 0,
    ) -> bool:
        proof = answer_proof(self._secret, nonce, status, content_range)
        lines = [
            f"HTTP/1.1 {status} {words}",
            f"Content-Length: {length}",
            *([f"Content-Range: {content_range}"] if content_range else []),
            f"{PROOF_HEADER}: {proof}",
        ]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return True

    def _send(self, connection: socket.socket, file: int, start: int, end: int) -> None:
        while start < end:
            count = min(end - start, _PIECE_BYTES)
            self._pace.wait(count)
            sent = _send_piece(connection, file, start, count)
            start += sent
            with self._lock:
                self.num_bytes += sent

    def _turn_away(self, connection: socket.socket) -> None:
        """Say that there is no room, when the request is read: else it would be a broken line."""
        _read_head(connection, _BUSY_SECONDS)
        _refuse(connection, 503, "Busy", "Retry-After: 1\r\n")

    def _end(self, connection: socket.socket, room: threading.Semaphore) -> None:
        connection.close()
        room.release()
        with self._lock:
            self._open.discard(connection)


class _Pace:
    """Holds senders to so many bytes a second, all together."""

    def __init__(self, bytes_a_second: float) -> None:
        self._rate = bytes_a_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wait(self, num_bytes: int) -> None:
        if not self._rate:
            return
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + num_bytes / self._rate
        time.sleep(max(0.0, begin - time.monotonic()))


def _send_piece(connection: socket.socket, file: int, start: int, count: int) -> int:
    """Send some of a file; return how much. A connection that takes nothing for long is over."""
    while True:
        try:
            sent = os.sendfile(connection.fileno(), file, start, count)
        except BlockingIOError:
            _wait_until_writable(connection)
            continue
        if not sent:
            raise OSError("the file has become shorter")
        return sent


def _wait_until_writable(connection: socket.socket) -> None:
    import select

    poll = select.poll()
    poll.register(connection.fileno(), select.POLLOUT)
    if not poll.poll(IDLE_SECONDS * 1000):
        raise TimeoutError("nothing was taken")


def _read_head(connection: socket.socket, seconds: float) -> str:
    """Return the lines before a request's end; empty where the connection ends.

    Raises:
        TimeoutError: They did not come within some seconds, all of them together.
    """
    data, deadline = b"", time.monotonic() + seconds
    while b"\r\n\r\n" not in data:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("a request does not end")
        connection.settimeout(left)
        more = connection.recv(_MAX_HEAD_BYTES)
        data += more
        if not more or len(data) > _MAX_HEAD_BYTES:
            return ""
    head, _, rest = data.partition(b"\r\n\r\n")
    return "" if rest else head.decode("latin-1")  # a body, or the next request: nobody asks so


def _headers_of(lines: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines.split("\r\n"):
        name, _, value = line.partition(":")
        found[name.strip().lower()] = value.strip()
    return found


def _refuse(connection: socket.socket, status: int, words: str, more: str = "") -> bool:
    text = f"HTTP/1.1 {status} {words}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n"
    connection.sendall(text.encode())
    return False
