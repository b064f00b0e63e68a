"""From an address to the one reader of what lies behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import NotFoundError, StoreError
from zse.store.http.pool import HttpPool
from zse.store.http.ranged import PREFIX_BYTES, RangedObject, Request
from zse.store.location import check_is_object

if TYPE_CHECKING:
    from zse.errors import ZSEError
    from zse.settings import Settings
    from zse.store.http.answer import Answer
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


def open_object(
    location: Location, settings: Settings, *, prefix_bytes: int = PREFIX_BYTES
) -> RangedObject:
    """Open an object behind s3://, hf:// or https://: one small request, or two.

    Raises:
        UsageError: The location names a folder.
        NotFoundError: There is no such object.
        StoreError: The server refuses, cannot be reached or does not honour ranges.
    """
    check_is_object(location)
    # Here, so that nobody loads what speaks to others than his own server.
    if location.scheme == "s3":
        from zse.store.s3_object import S3Place, account_of

        account = account_of(settings.aws, settings.proxies)
        return RangedObject(S3Place(location, account), account.pool(), prefix_bytes=prefix_bytes)
    pool = HttpPool(settings.proxies)
    if location.scheme == "hf":
        from zse.store.hub_file import HubPlace

        return RangedObject(HubPlace(location, settings.hub), pool, prefix_bytes=prefix_bytes)
    return RangedObject(WebPlace(location), pool, prefix_bytes=prefix_bytes)
