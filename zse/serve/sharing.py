"""A ready server shares its own file with replicas that start: ranges, from a port of its own.

It must never slow answers down: a few threads serve a bounded number of connections, at a lower
priority, and the kernel sends pages of the file without Python touching them (``sendfile``). Nobody
gets a byte, or one of these places, without the peers' secret (``pending_connections.py``), and
nothing can be asked for but this one file.
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
from zse.records import record
from zse.serve.pending_connections import MAX_HEAD_BYTES, PendingConnections
from zse.serve.sockets import bind_socket
from zse.stream.peers.keeping import KeepingSource
from zse.stream.peers.network import announced, is_network
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
    from zse.format.model_file import ModelFile
    from zse.format.reader import OpenFile
    from zse.serve.state import LoadedModel
    from zse.server_options import ServeOptions
    from zse.stream.neighbours import Neighbours

LOG = logging.getLogger("zse.serve")
IDLE_SECONDS = 30.0
"""How long a connection may say nothing, or take nothing."""
_FIRST_SECONDS = 5.0
"""Within which a connection must have asked once: until then it may be anybody's."""
_PIECE_BYTES = 1 << 20
_NICENESS = 10
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
_REQUEST = re.compile(r"GET (/[!-~]{0,200}) HTTP/1\.1")
_TRAFFIC_CLASS = 0x20
"""CS1 of DiffServ, for what gives way to everything else."""


@record
class _Request:
    """What a replica asks for; it has proven that it is one."""

    path: str
    span: str
    """The header ``Range``."""
    nonce: str


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
    if is_network(peering.peers_from):
        secret = read_secret(peering.secret, peering.secret_file)
        sharing.announce(announced(peering.peers_from, secret, options.host, sharing.port))
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
        self._places = threading.BoundedSemaphore(most_connections)
        """For replicas; others are told to come again."""
        self._pace = _Pace(most_bytes_a_second)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._announcement: Neighbours | None = None
        self.num_bytes = 0
        """Sent so far."""
        self._listener = bind_socket(host, port)
        self._listener.listen(64)
        self.port: int = self._listener.getsockname()[1]
        self._pending = PendingConnections(
            self._listener, self._admit, seconds=lambda: _FIRST_SECONDS
        )
        threading.Thread(target=self._listen, name="peers-listen", daemon=True).start()

    def announce(self, announcement: Neighbours) -> None:
        """Keep an announcement on the network open until this is closed."""
        self._announcement = announcement

    def close(self) -> None:
        """Stop: connections are cut, and those that read go on elsewhere."""
        if self._announcement is not None:
            self._announcement.close()
        with self._lock:
            self._is_closed = True
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._pending.close()

    # --- in threads of its own ------------------------------------------------------------------

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        self._pending.run()
        self._file.close()

    def _admit(self, connection: socket.socket, head: str) -> None:
        """Give a place to who has proven to be a replica; in the thread that reads first heads."""
        connection.settimeout(0)  # an answer so short needs nobody to take it
        try:
            request = self._read(connection, head)
            is_full = request is not None and not self._places.acquire(blocking=False)
            if is_full:
                _refuse(connection, 503, "Busy", "Retry-After: 1\r\n")
        except OSError:  # it has left
            connection.close()
            return
        if request is None or is_full:
            connection.close()
            return
        with self._lock:
            self._open.add(connection)
        thread = threading.Thread(
            target=self._within, args=(connection, request), name="peers-share", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._end(connection)

    def _within(self, connection: socket.socket, request: _Request) -> None:
        try:
            self._serve(connection, request)
        except OSError:
            pass  # it left, or took too long
        finally:
            self._end(connection)

    def _serve(self, connection: socket.socket, request: _Request | None) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _TRAFFIC_CLASS)
        file = self._file.share()  # whose number stays its own until the last piece is sent
        try:
            # Or the end of each range waits for the other side's late acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while request is not None and not self._is_closed:
                connection.settimeout(IDLE_SECONDS)
                if not self._answer(connection, file.fd, request):
                    break
                head = _read_head(connection, IDLE_SECONDS)
                request = self._read(connection, head) if head else None
        finally:
            file.close()

    def _read(self, connection: socket.socket, head: str) -> _Request | None:
        """Return what a head asks for; None where it was refused."""
        first_line, _, lines = head.partition("\r\n")
        request = _REQUEST.fullmatch(first_line)
        headers = _headers_of(lines)
        if request is None:
            _refuse(connection, 400, "Bad Request")
            return None
        try:
            nonce = self._check.check(request[1], headers)
        except PeerProofError as error:
            LOG.info("a request for weights was refused: %s", error)
            _refuse(connection, 401, "Unauthorized")
            return None
        return _Request(path=request[1], span=headers.get("range", ""), nonce=nonce)

    def _answer(self, connection: socket.socket, file: int, request: _Request) -> bool:
        """Answer one request; return whether another may follow."""
        nonce = request.nonce
        if request.path != self._path:
            return self._say(connection, nonce, 404, "Not Found", "")
        span = _RANGE.fullmatch(request.span)
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

    def _end(self, connection: socket.socket) -> None:
        connection.close()
        self._places.release()
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
        more = connection.recv(MAX_HEAD_BYTES)
        data += more
        if not more or len(data) > MAX_HEAD_BYTES:
            return ""
    head, _, rest = data.partition(b"\r\n\r\n")
    return "" if rest else head.decode("latin-1")  # a body, or the next request: nobody asks so


def _headers_of(lines: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines.split("\r\n"):
        name, _, value = line.partition(":")
        found[name.strip().lower()] = value.strip()
    return found


def _refuse(connection: socket.socket, status: int, words: str, more: str = "") -> None:
    text = f"HTTP/1.1 {status} {words}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n"
    connection.sendall(text.encode())
