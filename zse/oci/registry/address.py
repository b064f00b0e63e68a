"""Addresses that a registry names: where to go on, where a token is had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from zse.oci.errors import RegistryError

if TYPE_CHECKING:
    from zse.oci.registry.reference import Reference


def join_address(base: str, location: str) -> str:
    """Return the address that ``location`` means in an answer from ``base``.

    Raises:
        RegistryError: It is no address.
    """
    try:
        return str(httpx.URL(base).join(location))
    except (httpx.InvalidURL, ValueError) as error:
        host = httpx.URL(base).host
        raise RegistryError(f"{host} leads to {location!r}, which is no address") from error


def check_address(reference: Reference, address: str) -> str:
    """Return an address unless it must not be talked to.

    Raises:
        RegistryError: It is not https://, and the registry is not on this machine.
    """
    scheme = httpx.URL(address).scheme
    if scheme == "https" or (scheme == "http" and reference.is_loopback):
        return address
    words = "plain HTTP" if scheme == "http" else f"{scheme}://"
    raise RegistryError(
        f"{reference.host} leads to {words}, which is refused",
        hint="A proxy before a registry must tell it that the world speaks TLS with it.",
    )
