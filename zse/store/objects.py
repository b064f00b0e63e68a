"""From an address to the one reader of what lies behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.store.http.pool import HttpPool
from zse.store.http.ranged import PREFIX_BYTES, RangedObject
from zse.store.location import check_is_object

if TYPE_CHECKING:
    from zse.settings import Settings
    from zse.store.location import Location


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
    from zse.store.web import WebPlace

    return RangedObject(WebPlace(location), pool, prefix_bytes=prefix_bytes)
