"""A file behind a web address: how it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import NotFoundError, StoreError
from zse.store.http.ranged import Request

if TYPE_CHECKING:
    from zse.errors import ZSEError
    from zse.store.http.answer import Answer
    from zse.store.http.pool import HttpPool
    from zse.store.http.ranged import Facts
    from zse.store.location import Location


class WebPlace:
    """See ``Place``. It is never asked for by HEAD: a signed address is good for one method."""

    def __init__(self, location: Location) -> None:
        self._address = location.address
        self.name = str(location)

    def request(self) -> Request:
        return Request(url=self._address)

    def describe(self, pool: HttpPool) -> Facts | None:  # noqa: ARG002 - the first range tells all
        return None

    def refusal(self, answer: Answer) -> ZSEError:
        if answer.status in (404, 410):
            return NotFoundError(f"{self.name} does not exist", hint="Check the address.")
        return StoreError(
            f"{self.name}: the server answered {answer.status} {answer.reason}",
            hint="Check the address and the permissions.",
        )
