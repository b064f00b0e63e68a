"""Signing in to a registry: Basic, or a bearer token from the service that the registry names.

Nothing is sent before the registry asks for it, and what it gets is kept for one repository and
one scope. Threads that are refused at the same time share one answer.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

from zse.oci.errors import RegistryAuthError
from zse.oci.registry.address import check_address, join_address
from zse.store.http.retry import BUSY_STATUSES, BusyServerError

if TYPE_CHECKING:
    import httpx

    from zse.oci.registry.credentials import Credentials
    from zse.oci.registry.reference import Reference


class Scope(StrEnum):
    """What is to be done with the repository."""

    PULL = "pull"
    PUSH = "pull,push"


class SignIn:
    """The authorizations for one repository, and to read those that blobs are mounted from."""

    def __init__(
        self,
        client: httpx.Client,
        reference: Reference,
        credentials: Credentials | None,
        *,
        mounts: frozenset[str],
    ) -> None:
        self._client = client
        self._reference = reference
        self._credentials = credentials
        self._mounts = sorted(mounts - {reference.repository})
        self._authorization: dict[Scope, str] = {}
        self._renewing = threading.Lock()

    def headers(self, scope: Scope) -> dict[str, str]:
        """Return the Authorization header, where the registry has asked for one before."""
        found = self._authorization.get(scope)
        return {"Authorization": found} if found else {}

    def renew(self, scope: Scope, *, challenge: str, refused: str) -> None:
        """Get another authorization than the one ``refused``, as the ``challenge`` demands.

        Raises:
            RegistryAuthError: There are no credentials, they are refused, or the registry asks
                for something that is not known here.
            BusyServerError: The sign-in service asks to try again later.
            httpx.RequestError: It could not be reached.
        """
        with self._renewing:
            if self._authorization.get(scope, "") == refused:  # else another thread renewed it
                self._authorization[scope] = self._authorize(scope, challenge, refused)

    def _authorize(self, scope: Scope, challenge: str, refused: str) -> str:
        host, credentials = self._reference.host, self._credentials
        kind, _, rest = challenge.partition(" ")
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if kind.lower() == "basic":
            if credentials is None:
                raise RegistryAuthError(f"{host} wants a user and a password")
            if refused == credentials.basic:
                raise RegistryAuthError(f"{host} refused the stored credentials")
            return credentials.basic
        if kind.lower() == "bearer" and "realm" in fields:
            return f"Bearer {self._token(scope, fields)}"
        raise RegistryAuthError(f"{host} asks to sign in by {challenge!r}")

    def _token(self, scope: Scope, fields: dict[str, str]) -> str:
        host = self._reference.host
        answer = self._ask(scope, fields["realm"], fields.get("service", ""))
        if answer.status_code in BUSY_STATUSES:
            raise BusyServerError(
                f"{host}'s sign-in service answered {answer.status_code}",
                answer.headers.get("retry-after"),
            )
        if answer.status_code != 200:
            raise RegistryAuthError(f"{host} gave no token ({answer.status_code})")
        token = None
        with suppress(ValueError, AttributeError):
            document = answer.json()
            token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token:
            raise RegistryAuthError(f"{host}'s sign-in answer holds no token")
        return token

    def _ask(self, scope: Scope, realm: str, service: str) -> httpx.Response:
        home = f"https://{self._reference.api_host}"
        address = check_address(self._reference, join_address(home, realm))
        scopes = [f"repository:{self._reference.repository}:{scope}"]
        if scope is Scope.PUSH:  # a registry mounts nothing from where one may not read
            scopes += [f"repository:{name}:pull" for name in self._mounts]
        credentials = self._credentials
        if credentials is not None and credentials.identity_token:
            form = {
                "service": service,
                "scope": " ".join(scopes),
                "grant_type": "refresh_token",
                "client_id": "zse",
                "refresh_token": credentials.identity_token,
            }
            return self._client.post(address, data=form)
        headers = {"Authorization": credentials.basic} if credentials is not None else {}
        query = {"service": service, "scope": scopes}
        return self._client.get(address, params=query, headers=headers)
