"""Requests to one repository of a registry, each sent until it is answered for good.

It signs in when asked to, waits when told to, follows redirects without carrying the token to
another host, and turns every refusal into an error with words in it. Plain HTTP is spoken only with
this machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from zse.oci.errors import RegistryAuthError, RegistryError
from zse.oci.layout.manifest import MALFORMED
from zse.oci.registry.address import check_address, join_address
from zse.oci.registry.sign_in import Scope, SignIn
from zse.records import record
from zse.store.http.retry import BUSY_STATUSES, BusyServerError, doubled_seconds

if TYPE_CHECKING:
    from zse.oci.registry.credentials import Credentials
    from zse.oci.registry.reference import Reference

Body = bytes | Callable[[], Iterable[bytes]] | None
"""A request body: bytes, or a function that starts it anew so that a retry can resend it."""

MAX_ANSWER_BYTES = 8 << 20
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_MAX_SIGN_INS = 2
_TIMEOUT = httpx.Timeout(60.0, connect=5.0, read=300.0, write=300.0)
_HURRIED_TIMEOUT = httpx.Timeout(5.0)
_RETRIES_UNREACHED = 1
"""Of a host that never answered: a wrong name or no network, which patience does not mend."""
_Taken = TypeVar("_Taken")


@record
class Call:
    """One request, whatever it takes to have it answered."""

    method: str = "GET"
    location: str
    """Path below ``/v2/REPOSITORY/``, or the address that a former answer gave."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body = None
    accept: tuple[int, ...] = (200,)
    """Status codes that are answers, not errors."""
    scope: Scope = Scope.PULL
    retries: int = 4
    """How often it is sent again after a cut or a busy registry."""


@record
class Answer:
    """An accepted answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    address: str
    """Where it came from, after redirects."""

    @property
    def location(self) -> str:
        """Where the registry says to go on.

        Raises:
            RegistryError: It does not say.
        """
        if "location" not in self.headers:
            raise RegistryError(
                f"{urlsplit(self.address).netloc} answered {self.status} without a Location"
            )
        return join_address(self.address, self.headers["location"])


class Connection:
    """What sends calls to one repository of one registry.

    Args:
        reference: Names the host and the repository.
        credentials: Used when the registry asks for them.
        mounts: Repositories of the same registry that blobs are to be mounted from.
        transport: Replaces the network, for tests.
        sleep: Replaces the clock, for tests.
        is_hurried: Try once and wait seconds, for an answer that can be done without.
    """

    def __init__(
        self,
        reference: Reference,
        credentials: Credentials | None = None,
        *,
        mounts: frozenset[str] = frozenset(),
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        is_hurried: bool = False,
    ) -> None:
        self.reference = reference
        scheme = "http" if reference.is_loopback else "https"
        self._base = f"{scheme}://{reference.api_host}/v2/{reference.repository}/"
        timeout = _HURRIED_TIMEOUT if is_hurried else _TIMEOUT
        self._client = httpx.Client(transport=transport, timeout=timeout, follow_redirects=False)
        self._sign_in = SignIn(self._client, reference, credentials, mounts=mounts)
        self._sleep = sleep
        self._is_hurried = is_hurried
        self._was_reached = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def address_of(self, location: str) -> str:
        """Return the address of a path below the repository."""
        return self._base + location

    def authorization(self) -> Mapping[str, str]:
        """Return what a GET to the registry carries now, for whoever sends it by other means."""
        return self._sign_in.headers(Scope.PULL)

    def authorize(self, challenge: str, *, refused: str) -> None:
        """Sign in anew, since the registry has answered such a GET with 401.

        Raises:
            RegistryAuthError: There are no credentials, or they are refused.
        """
        try:
            self._sign_in.renew(Scope.PULL, challenge=challenge, refused=refused)
        except (httpx.RequestError, BusyServerError) as error:
            host = self.reference.host
            raise RegistryAuthError(f"{host} cannot be signed in to: {error}") from error

    def send(self, call: Call) -> Answer:
        """Return the whole answer to a call.

        Raises:
            RegistryAuthError: The registry refused the credentials, or wants some.
            RegistryError: Any other refusal, no connection, or an answer that is too long.
        """
        return self._patiently(call, _read)

    @contextmanager
    def stream(self, call: Call) -> Iterator[httpx.Response]:
        """Give the answer to a call with its body unread; errors are those of `send`."""
        with closing(self._patiently(call, lambda answer: answer)) as answer:
            yield answer

    def _patiently(self, call: Call, take: Callable[[httpx.Response], _Taken]) -> _Taken:
        """Send a call, again if need be, until ``take`` has what it wants of an accepted answer."""
        failures = 0
        while True:
            try:
                return take(self._settled(call))
            except (httpx.RequestError, BusyServerError) as error:
                failures += 1
                retries = call.retries if self._was_reached else _RETRIES_UNREACHED
                if self._is_hurried or failures > min(call.retries, retries):
                    raise self._given_up(error) from error
                asked_seconds = error.pause_seconds if isinstance(error, BusyServerError) else 0
                self._sleep(asked_seconds or doubled_seconds(failures, first_seconds=1.0))

    def _settled(self, call: Call) -> httpx.Response:
        """Send a call once, by way of redirects and the sign-in; return an accepted answer."""
        address = join_address(self._base, call.location)
        redirects = sign_ins = 0
        while True:
            answer = self._exchange(call, check_address(self.reference, address))
            if answer.status_code in call.accept:
                return answer
            with closing(answer):
                here = str(answer.request.url)
                following = self._redirect(call, answer)
                if following and redirects < _MAX_REDIRECTS:
                    redirects += 1
                    address = following
                elif answer.status_code == 401 and self._is_ours(here) and sign_ins < _MAX_SIGN_INS:
                    sign_ins += 1
                    self._sign_in.renew(
                        call.scope,
                        challenge=answer.headers.get("www-authenticate", ""),
                        refused=answer.request.headers.get("authorization", ""),
                    )
                else:
                    self._refuse(answer)

    def _exchange(self, call: Call, address: str) -> httpx.Response:
        signed = self._sign_in.headers(call.scope) if self._is_ours(address) else {}
        request = self._client.build_request(
            call.method,
            address,
            content=call.body() if callable(call.body) else call.body,
            headers={**call.headers, **signed},
        )
        answer = self._client.send(request, stream=True)
        self._was_reached = True
        return answer

    def _redirect(self, call: Call, answer: httpx.Response) -> str:
        """Return where an answer sends the call; empty when it is none that may be followed."""
        target = answer.headers.get("location", "")
        if answer.status_code not in _REDIRECTS or call.method not in {"GET", "HEAD"} or not target:
            return ""
        return join_address(str(answer.request.url), target)

    def _is_ours(self, address: str) -> bool:
        """Whether an address is the registry itself: a redirect's other host gets no token."""
        return urlsplit(address)[:2] == urlsplit(self._base)[:2]

    def _refuse(self, answer: httpx.Response) -> NoReturn:
        status, request = answer.status_code, answer.request
        what = (
            f"{self.reference.host} answered {status} to {request.method} {request.url.path}"
            f"{_reason(_content(answer))}"
        )
        if status in BUSY_STATUSES:
            raise BusyServerError(what, answer.headers.get("retry-after"))
        if status in {401, 403}:
            raise RegistryAuthError(what)
        hint = "Check the repository's name and the tag." if status == 404 else ""
        raise RegistryError(what, hint=hint)

    def _given_up(self, error: httpx.RequestError | BusyServerError) -> RegistryError:
        if isinstance(error, BusyServerError):
            return RegistryError(str(error), hint="The registry is busy: try again later.")
        return RegistryError(
            f"{error.request.url.netloc.decode()} could not be reached: {error}",
            hint="Check the host's name and the network.",
        )


def _read(answer: httpx.Response) -> Answer:
    with closing(answer):
        content, address = _content(answer), str(answer.request.url)
    return Answer(
        status=answer.status_code, headers=answer.headers, content=content, address=address
    )


def _content(answer: httpx.Response) -> bytes:
    content = bytearray()
    for chunk in answer.iter_bytes():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            url = answer.request.url
            raise RegistryError(
                f"{url.host} answered {url.path} with more than {MAX_ANSWER_BYTES} bytes"
            )
    return bytes(content)


def _reason(content: bytes) -> str:
    try:
        errors = json.loads(content)["errors"]
        words = "; ".join(f"{e.get('code')}: {e.get('message')}" for e in errors)
    except MALFORMED:
        return ""
    return f": {words[:300]}"
