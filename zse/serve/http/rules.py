"""Whom the server answers, worked out of its options once, before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record
from zse.serve.http.hosts import answered_hosts

if TYPE_CHECKING:
    from zse.serve.http.proxies import Network
    from zse.serve.http.tls import Certificates
    from zse.server_options import HTTPOptions


@record
class HTTPRules:
    """What the wrappers around the routes go by."""

    hosts: frozenset[str] | None = None
    """Names that are answered; None answers to any."""
    origins: frozenset[str] = frozenset()
    """Of web pages that may read answers and open WebSockets."""
    proxies: tuple[Network, ...] = ()
    """Networks of those who may say whom they ask for."""
    root_path: str = ""
    certificates: Certificates | None = None
    """For HTTPS; None for plain HTTP."""


def rules_of(options: HTTPOptions, *, bound: str) -> HTTPRules:
    """Return the rules that the options of a server make, which listens on ``bound``.

    Raises:
        UsageError: An option says nothing that can be done.
    """
    return HTTPRules(
        hosts=answered_hosts(bound, options.allowed_hosts),
        origins=_origins(options),
        proxies=_proxies(options),
        root_path=_root_path(options),
        certificates=_certificates(options),
    )


# What most servers are not told is not imported by their starts.


def _origins(options: HTTPOptions) -> frozenset[str]:
    if not options.cors_origins:
        return frozenset()
    from zse.serve.http.cors import origins_of

    return origins_of(options.cors_origins)


def _proxies(options: HTTPOptions) -> tuple[Network, ...]:
    if not options.trusted_proxies:
        return ()
    from zse.serve.http.proxies import networks_of

    return networks_of(options.trusted_proxies)


def _root_path(options: HTTPOptions) -> str:
    if not options.root_path:
        return ""
    from zse.serve.http.root_path import clean_root_path

    return clean_root_path(options.root_path)


def _certificates(options: HTTPOptions) -> Certificates | None:
    if not (options.ssl_certfile or options.ssl_keyfile):
        return None
    from zse.serve.http.tls import certificates_of

    return certificates_of(options)
