"""Looking at replicas: who they are, whether they take requests, how busy they are.

``/load`` of a zse server says all in one answer. Where it is not there, or asks for a key that the
router does not have, ``/health/ready`` says the half of it, and of other servers ``/health``; then
the router goes by the requests that it sent itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from typing import TYPE_CHECKING, Any

import msgspec

from zse.errors import ZSEError
from zse.route.addresses import MAX_REPLICAS, look_up, read_address
from zse.route.replicas import Load, State
from zse.route.upstream import NotReachedError, Pool, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zse.route.addresses import Address
    from zse.route.fleet import Fleet, Member
    from zse.route.upstream import Upstream

LOG = logging.getLogger("zse.route")
NAMES_SECONDS = 5.0
"""How often names and files of replicas are read."""
WAKE_SECONDS = 1.0
_MIN_ANSWER_SECONDS = 1.0
"""For a look, however often it is looked: a busy server may take a while."""
_MAX_BYTES = 64 << 10
_LOAD, _READY, _HEALTH = "/load", "/health/ready", "/health"
_NEXT = {_LOAD: _READY, _READY: _HEALTH}
_NOT_FOR_US = frozenset({401, 403, 404, 405})


class _LoadBody(msgspec.Struct):
    """What is read of ``/load``."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    sleep_level: int = 0


_decode = msgspec.json.Decoder(_LoadBody).decode


class Looks:
    """Looks until it is stopped.

    Args:
        sources: Each names replicas.
    """

    def __init__(self, fleet: Fleet, sources: list[Callable[[], Iterable[Address]]]) -> None:
        self._fleet = fleet
        self._sources = sources
        self._last: list[list[Address]] = [[] for _ in sources]
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._beside: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read the names once, and begin to look."""
        await self._read_names()
        self._beside = [asyncio.create_task(self._follow_names())]
        if self._fleet.options.wake_url:
            self._beside.append(asyncio.create_task(self._wake()))

    async def stop(self) -> None:
        tasks = [*self._tasks.values(), *self._beside]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- who they are -----------------------------------------------------------------------------

    async def _follow_names(self) -> None:
        while True:
            await asyncio.sleep(NAMES_SECONDS)
            await self._read_names()

    async def _read_names(self) -> None:
        """Ask who the replicas are; a source that says nothing is taken at its last word."""
        for index, source in enumerate(self._sources):
            try:
                self._last[index] = await look_up(source)
            except (ZSEError, OSError) as error:
                LOG.warning("replicas are not named: %s", error)
        named = [address for addresses in self._last for address in addresses]
        if len(named) > MAX_REPLICAS:
            LOG.warning("more replicas than are watched", extra={"named": len(named)})
        new, gone = self._fleet.set_addresses(named[:MAX_REPLICAS])
        for member in gone:
            self._tasks.pop(member.replica.name).cancel()
        for member in new:
            self._tasks[member.replica.name] = asyncio.create_task(self._watch(member))

    # --- how they are -----------------------------------------------------------------------------

    async def _watch(self, member: Member) -> None:
        """Look at one replica again and again, at moments of its own."""
        seconds = self._fleet.options.look_seconds
        look = _Look(member, self._fleet.options.replica_key, max(seconds, _MIN_ANSWER_SECONDS))
        with contextlib.closing(look):
            while True:
                try:
                    await self._look(member, look)
                except Exception:
                    LOG.exception("a look failed", extra={"replica": member.replica.name})
                await asyncio.sleep(seconds * random.uniform(0.8, 1.2))

    async def _look(self, member: Member, look: _Look) -> None:
        replica, options = member.replica, self._fleet.options
        before = replica.state
        try:
            status, body = await look.ask()
        except UpstreamError as error:
            if replica.missed(time.monotonic(), dead_after=options.dead_after):
                LOG.warning("a replica is down: %s", error, extra={"replica": replica.name})
            if replica.state is State.DOWN:
                # A look that hangs takes as long: so it is as many looks that nothing came in.
                seconds = options.dead_after * max(options.look_seconds, _MIN_ANSWER_SECONDS)
                member.cut_silent(asyncio.get_running_loop().time() - seconds)
        else:
            if status == 200:
                replica.saw_ready(_load_of(body) if look.path == _LOAD else None)
            else:
                replica.saw_unready()
        if replica.state is not before:
            facts = {"replica": replica.name, "state": str(replica.state)}
            LOG.info("a replica is %s", replica.state, extra=facts)
        self._fleet.news()

    # --- who wakes them ---------------------------------------------------------------------------

    async def _wake(self) -> None:
        """Tell whoever starts replicas how many requests wait."""
        scheme, _, rest = self._fleet.options.wake_url.partition("://")
        netloc, _, path = rest.partition("/")
        address = read_address(f"{scheme}://{netloc}")
        pool = Pool(address, connect_seconds=WAKE_SECONDS)
        while True:
            await asyncio.sleep(WAKE_SECONDS / 4)
            if not self._fleet.num_waiting:
                continue
            body = b'{"waiting": %d}' % self._fleet.num_waiting
            head = _head(b"POST", "/" + path, address, {"content-type": "application/json"}, body)
            try:
                status, _ = await _exchange(pool, head, body, seconds=2 * WAKE_SECONDS)
                LOG.info("asked for replicas", extra={"status": status})
            except UpstreamError as error:
                LOG.warning("nobody can be asked for replicas: %s", error)
            await asyncio.sleep(WAKE_SECONDS)


class _Look:
    """How one replica is asked how it is: by the best of the paths that it answers."""

    def __init__(self, member: Member, key: str, seconds: float) -> None:
        self.path = _LOAD
        self._pool = Pool(member.address, connect_seconds=min(seconds, 2.0))
        self._address = member.address
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._seconds = seconds

    def close(self) -> None:
        self._pool.close()

    async def ask(self) -> tuple[int, bytes]:
        """Return what it says.

        Raises:
            UpstreamError: It does not answer in time, or not as it should.
        """
        while True:
            head = _head(b"GET", self.path, self._address, self._headers, b"")
            status, body = await _exchange(self._pool, head, b"", seconds=self._seconds)
            if status not in _NOT_FOR_US or self.path not in _NEXT:
                return status, body
            self.path = _NEXT[self.path]


def _head(
    method: bytes, path: str, address: Address, headers: dict[str, str], body: bytes
) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method, path.encode()), b"host: " + address.netloc.encode()]
    lines += [f"{name}: {value}".encode() for name, value in headers.items()]
    if body:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _exchange(pool: Pool, head: bytes, body: bytes, *, seconds: float) -> tuple[int, bytes]:
    """Ask for a short answer.

    Raises:
        UpstreamError: It does not come in time, or is long.
    """
    connection: Upstream | None = None
    try:
        async with asyncio.timeout(seconds):
            connection = await pool.get()
            answer = await connection.ask(head, body)
            news = asyncio.Event()
            connection.on_news = news.set
            data = connection.take()
            while not connection.is_done and len(data) <= _MAX_BYTES:
                if connection.failure is not None:
                    raise connection.failure
                await news.wait()
                news.clear()
                data += connection.take()
            return answer.status, data
    except TimeoutError:
        raise NotReachedError("It did not answer in time.") from None
    finally:
        if connection is not None:
            if connection.is_done:
                pool.give_back(connection)
            else:
                connection.close()


def _load_of(body: bytes) -> Load | None:
    """Return what a replica says of its work; None where that is not understood."""
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        said: Any = _decode(body)
        return Load(
            running=max(0, said.running),
            waiting=max(0, said.waiting),
            kv_usage=min(max(said.kv_usage, 0.0), 1.0),
            is_asleep=said.sleep_level > 0,
        )
    return None
