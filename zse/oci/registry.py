"""A client of the OCI distribution API: manifests and blobs, with sign-in and patience.

One class sends requests; it signs in when asked to, waits when told to, follows redirects without
carrying the token to another host, and turns every refusal into an error with words in it. Plain
HTTP is spoken only with this machine.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urljoin, urlsplit

import httpx

from zse.oci.errors import DigestMismatchError, RegistryAuthError, RegistryError
from zse.oci.image import (
    INDEX_TYPES,
    MEDIA_TYPE_DOCKER_MANIFEST,
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    digest_of,
)

if TYPE_CHECKING:
    from zse.oci.credentials import Credentials
    from zse.oci.reference import Reference

Body = bytes | Callable[[], Iterable[bytes]] | None
"""A request body: bytes, or a function that starts it anew so that a retry can resend it."""

_ACCEPT = ", ".join([*sorted(INDEX_TYPES), MEDIA_TYPE_MANIFEST, MEDIA_TYPE_DOCKER_MANIFEST])
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRIES = 5
_MAX_WAIT_SECONDS = 60.0
_MAX_MANIFEST_BYTES = 8 << 20
_TIMEOUT = httpx.Timeout(60.0, read=300.0, write=300.0)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest or index as the registry gave it."""

    content: bytes
    media_type: str
    digest: str

    @property
    def document(self) -> dict[str, Any]:
        """The parsed JSON."""
        parsed = json.loads(self.content)
        if not isinstance(parsed, dict):
            raise RegistryError("the registry's manifest is not a JSON object")
        return parsed


class Registry:
    """Requests to one repository of one registry.

    Args:
        reference: Names the host and the repository.
        credentials: Used when the registry asks for them.
        mounts: Repositories of the same registry that blobs are to be mounted from.
        transport: Replaces the network, for tests.
        sleep: Replaces the clock, for tests.
    """

    def __init__(
        self,
        reference: Reference,
        credentials: Credentials | None = None,
        *,
        mounts: frozenset[str] = frozenset(),
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        scheme = "http" if reference.is_loopback else "https"
        self.reference = reference
        self._base = f"{scheme}://{reference.api_host}"
        self._path = f"/v2/{reference.repository}"
        self._credentials = credentials
        self._mounts = sorted(mounts - {reference.repository})
        self._sleep = sleep
        self._authorization: dict[str, str] = {}
        self._signing_in = threading.Lock()
        self._client = httpx.Client(transport=transport, timeout=_TIMEOUT, follow_redirects=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    # --- reading -----------------------------------------------------------------------------

    def manifest(self, identifier: str) -> Manifest:
        """Return a manifest by tag or digest, its digest checked.

        Raises:
            RegistryError: The registry has no such manifest.
            DigestMismatchError: The bytes are not what the digest says.
        """
        answer = self.request(
            "GET", f"{self._path}/manifests/{identifier}", headers={"Accept": _ACCEPT}
        )
        return self._checked_manifest(identifier, answer)

    def find_manifest(self, identifier: str) -> Manifest | None:
        """Return a manifest, or None when the registry has none of that name."""
        answer = self.request(
            "GET",
            f"{self._path}/manifests/{identifier}",
            headers={"Accept": _ACCEPT},
            accept=(200, 404),
        )
        return None if answer.status_code == 404 else self._checked_manifest(identifier, answer)

    def referrers(self, digest: str) -> list[Descriptor]:
        """Return what refers to a manifest: by the registry's API, else by the agreed tag."""
        answer = self.request(
            "GET",
            f"{self._path}/referrers/{digest}",
            headers={"Accept": MEDIA_TYPE_INDEX},
            accept=(200, 400, 404, 405),
        )
        if answer.status_code == 200:
            try:
                items = answer.json()["manifests"]
                return [Descriptor.from_json(item) for item in items]
            except (ValueError, KeyError, TypeError) as error:
                raise RegistryError(f"the referrers of {digest} are not an index") from error
        found = self.find_manifest(digest.replace(":", "-", 1))
        items = found.document.get("manifests", ()) if found is not None else ()
        return [Descriptor.from_json(item) for item in items]

    def _checked_manifest(self, identifier: str, answer: httpx.Response) -> Manifest:
        if len(answer.content) > _MAX_MANIFEST_BYTES:
            raise RegistryError(f"the manifest {identifier} has {len(answer.content)} bytes")
        digest = digest_of(answer.content)
        if identifier.startswith("sha256:") and identifier != digest:
            raise DigestMismatchError(f"manifest {identifier} arrived with digest {digest}")
        media_type = answer.headers.get("content-type", "").split(";")[0].strip()
        return Manifest(content=answer.content, media_type=media_type, digest=digest)

    def small_blob(self, descriptor: Descriptor) -> bytes:
        """Return a blob that fits into memory, its digest checked."""
        if descriptor.size_bytes > _MAX_MANIFEST_BYTES:
            raise RegistryError(f"the config {descriptor.digest} has {descriptor.size_bytes} bytes")
        content = self.request("GET", f"{self._path}/blobs/{descriptor.digest}").content
        if digest_of(content) != descriptor.digest:
            raise DigestMismatchError(f"blob {descriptor.digest} arrived with other bytes")
        return content

    def has_blob(self, digest: str) -> bool:
        """Ask whether the repository holds a blob."""
        answer = self.request(
            "HEAD", f"{self._path}/blobs/{digest}", accept=(200, 404), scope="pull,push"
        )
        return answer.status_code == 200

    # --- writing -----------------------------------------------------------------------------

    def push_manifest(self, identifier: str, content: bytes, media_type: str) -> bool:
        """Store a manifest under a tag or its digest.

        Returns:
            Whether the registry took note of the manifest's subject, so that it lists it there.

        Raises:
            DigestMismatchError: The registry says it stored other bytes.
        """
        answer = self.request(
            "PUT",
            f"{self._path}/manifests/{identifier}",
            body=content,
            headers={"Content-Type": media_type},
            accept=(200, 201, 202),
            scope="pull,push",
        )
        digest = digest_of(content)
        stored = answer.headers.get("docker-content-digest", digest)
        if stored != digest:
            raise DigestMismatchError(f"the registry rewrote the manifest {digest} to {stored}")
        return bool(answer.headers.get("oci-subject"))

    # --- one request -------------------------------------------------------------------------

    def request(
        self,
        method: str,
        location: str,
        *,
        body: Body = None,
        headers: dict[str, str] | None = None,
        accept: tuple[int, ...] = (200,),
        scope: str = "pull",
        is_streamed: bool = False,
        tries: int = _TRIES,
        is_resent: bool = True,
    ) -> httpx.Response:
        """Send a request until it is answered for good.

        Args:
            method: HTTP method.
            location: Path, or the address that a former answer gave.
            body: What to send.
            headers: More headers.
            accept: Status codes that are answers, not errors.
            scope: What is to be done: ``pull`` or ``pull,push``.
            is_streamed: Leave the answer's body unread; the caller closes it.
            tries: How often to send at most.
            is_resent: Whether a request that failed underway may be sent again as it is; a part
                of an upload may not, because nobody knows how much of it arrived.

        Raises:
            RegistryAuthError: The registry refused the credentials, or wants some.
            RegistryError: Any other refusal, or no connection.
        """
        address = urljoin(self._base, location)
        for attempt in range(1, tries + 1):
            is_last = attempt == tries or not is_resent
            answer = self._send(method, address, body, headers or {}, scope, is_last)
            if answer is None:
                self._sleep(_backoff_seconds(attempt))
                continue
            status = answer.status_code
            if status in accept:
                if not is_streamed:
                    answer.read()
                return answer
            if status in _REDIRECTS and method in {"GET", "HEAD"} and attempt < tries:
                answer.close()
                address = urljoin(address, answer.headers["location"])
                self._refuse_plain_http(address)
                continue
            answer.read()
            answer.close()
            if status == 401 and attempt < tries and self._is_ours(address):
                sent = answer.request.headers.get("authorization", "")
                self._sign_in(answer.headers.get("www-authenticate", ""), scope, sent)
            elif status in _RETRIED and not is_last:
                self._sleep(_wait_seconds(answer.headers.get("retry-after", ""), attempt))
            else:
                raise self._refusal(method, address, answer)
        raise RegistryError(f"{self.reference.host} redirected {location} too often")

    def _send(
        self,
        method: str,
        address: str,
        body: Body,
        headers: dict[str, str],
        scope: str,
        is_last: bool,
    ) -> httpx.Response | None:
        sent = dict(headers)
        if self._is_ours(address) and scope in self._authorization:
            sent["Authorization"] = self._authorization[scope]
        content = body() if callable(body) else body
        try:
            return self._client.send(
                self._client.build_request(method, address, content=content, headers=sent),
                stream=True,
            )
        except httpx.TransportError as error:
            if is_last:
                raise RegistryError(
                    f"{self.reference.host} could not be reached: {error}",
                    hint="Check the host's name and the network.",
                ) from error
            return None

    def _is_ours(self, address: str) -> bool:
        """Whether an address is the registry itself: a redirect's other host gets no token."""
        return urlsplit(address)[:2] == urlsplit(self._base)[:2]

    def _refuse_plain_http(self, address: str) -> None:
        if urlsplit(address).scheme != "https" and not self.reference.is_loopback:
            raise RegistryError(f"{self.reference.host} redirects to plain HTTP, which is refused")

    # --- signing in --------------------------------------------------------------------------

    def _sign_in(self, challenge: str, scope: str, sent: str) -> None:
        """Get an authorization; ``sent`` is the one that was refused."""
        with self._signing_in:
            if self._authorization.get(scope, "") == sent:  # else another thread has a newer one
                self._authorization[scope] = self._authorize(challenge, scope, sent)

    def _authorize(self, challenge: str, scope: str, sent: str) -> str:
        kind, _, rest = challenge.partition(" ")
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if kind.lower() == "basic":
            if self._credentials is None:
                raise RegistryAuthError(f"{self.reference.host} wants a user and a password")
            if sent == self._credentials.basic:
                raise RegistryAuthError(f"{self.reference.host} refused the stored credentials")
            return self._credentials.basic
        if kind.lower() == "bearer" and "realm" in fields:
            return f"Bearer {self._token(fields, scope)}"
        raise RegistryAuthError(f"{self.reference.host} asks to sign in by {challenge!r}")

    def _token(self, fields: dict[str, str], scope: str) -> str:
        realm = fields["realm"]
        self._refuse_plain_http(realm)
        scopes = [f"repository:{self.reference.repository}:{scope}"]
        if scope != "pull":  # without a right to read it, a registry mounts nothing from elsewhere
            scopes += [f"repository:{name}:pull" for name in self._mounts]
        wanted = {"service": fields.get("service", ""), "scope": " ".join(scopes)}
        credentials = self._credentials
        try:
            if credentials is not None and credentials.identity_token:
                form = {
                    **wanted,
                    "grant_type": "refresh_token",
                    "client_id": "zse",
                    "refresh_token": credentials.identity_token,
                }
                answer = self._client.post(realm, data=form)
            else:
                header = {"Authorization": credentials.basic} if credentials is not None else {}
                query = {**wanted, "scope": scopes}
                answer = self._client.get(realm, params=query, headers=header)
        except httpx.TransportError as error:
            raise RegistryError(f"the sign-in service could not be reached: {error}") from error
        if answer.status_code != 200:
            raise RegistryAuthError(f"{self.reference.host} gave no token ({answer.status_code})")
        document = answer.json()
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token:
            raise RegistryAuthError(f"{self.reference.host}'s sign-in answer holds no token")
        return token

    def _refusal(self, method: str, address: str, answer: httpx.Response) -> RegistryError:
        status = answer.status_code
        path = urlsplit(address).path
        what = f"{self.reference.host} answered {status} to {method} {path}{_reason(answer)}"
        if status in {401, 403}:
            return RegistryAuthError(what)
        if status == 404:
            return RegistryError(what, hint="Check the repository's name and the tag.")
        return RegistryError(what)


def _reason(answer: httpx.Response) -> str:
    """Return what the registry's error body says, if it says anything."""
    try:
        errors = answer.json()["errors"]
        words = "; ".join(f"{e.get('code')}: {e.get('message')}" for e in errors)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return f": {words[:300]}"


def _backoff_seconds(attempt: int) -> float:
    return min(_MAX_WAIT_SECONDS, 0.5 * 2.0**attempt)


def _wait_seconds(retry_after: str, attempt: int) -> float:
    """Seconds to wait: what Retry-After says, as a number or a date, within a minute."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError):
            seconds = _backoff_seconds(attempt)
    return min(_MAX_WAIT_SECONDS, max(0.0, seconds))
