"""Finds replicas, and opens a model behind an address so that its bytes come from them."""

from __future__ import annotations

import hashlib
import logging
import random
import socket
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.format.reader import ZSEReader
from zse.store.objects import open_object
from zse.stream.peers.fetching import fetch
from zse.stream.peers.keeping import KeepingSource
from zse.stream.peers.network import is_network, replicas_on_network
from zse.stream.peers.peer import Peer, check_url
from zse.stream.peers.proof import read_secret
from zse.stream.peers.striped import StripedSource
from zse.stream.remote import RemoteReader

if TYPE_CHECKING:
    from zse.format.model_file import ModelFile
    from zse.format.spec import ZSEHeader
    from zse.server_options import PeerOptions
    from zse.settings import Settings
    from zse.store.location import Location
    from zse.stream.source import ByteSource

_LOG = logging.getLogger("zse.stream")
THIS_HOST = "host"
"""In place of a name: replicas on this machine alone, by their GPU memory."""
MOST_PEERS = 8
"""That one start asks; of more some are chosen, others by others."""


def open_shared(location: Location, settings: Settings, *, is_streamed: bool) -> ModelFile:
    """Open a .zse file behind an address whose bytes come from replicas.

    Its header comes from the address, so that no replica decides what the model is.

    Args:
        location: The file's origin.
        settings: Which replicas, and their secret.
        is_streamed: Whether a device is fed; else the file is fetched into the cache.

    Raises:
        UsageError: A replica's address, or the secret, is not usable.
        NotFoundError, StoreError, FormatError: Of the origin.
    """
    options = settings.serve.peering
    secret = read_secret(options.secret, options.secret_file)
    urls = peer_urls(options, secret)
    origin = open_object(location, settings)
    reader = RemoteReader(origin)
    peers = [Peer(url, identity_of(reader.header), secret, settings.proxies) for url in urls]
    starts = [region.offset_bytes for region in reader.header.regions]
    source = StripedSource(origin, peers, starts)
    if is_streamed:
        found: ByteSource = source if peers else origin
        reader.source = _kept(found, location, settings) if options.share_weights else found
        return reader
    reader.source = source
    with reader:
        return ZSEReader(fetch(reader, source, location, settings))


def _kept(source: ByteSource, location: Location, settings: Settings) -> ByteSource:
    """Return a source whose bytes stay on this machine, to be shared; or itself, with a warning."""
    try:
        return KeepingSource(source, location, settings)
    except OSError as error:
        _LOG.warning("weights cannot be shared: %s is not writable", settings.cache_dir)
        _LOG.debug("%s", error)
        return source


def identity_of(header: ZSEHeader) -> str:
    """Return what names a file's content: the digest of its header, which lists all others."""
    return hashlib.sha256(header.to_bytes()).hexdigest()


def peer_urls(options: PeerOptions, secret: bytes = b"") -> list[str]:
    """Return the addresses of replicas, in an order that is another for everybody.

    Raises:
        UsageError: One of them is no address.
        MissingDependencyError: The network is to be asked, and Zenoh is not installed.
    """
    urls = [url.rstrip("/") for url in options.peers]
    for url in urls:
        check_url(url)
    if options.peers_from == THIS_HOST:
        pass  # they are found without an address: see ``beside``
    elif is_network(options.peers_from):
        urls += replicas_on_network(options.peers_from, secret)
    elif options.peers_from:
        urls += _addresses_of(options.peers_from, options.share_port)
    found = list(dict.fromkeys(urls))
    random.shuffle(found)
    return found[:MOST_PEERS]


def _addresses_of(name: str, port: int) -> list[str]:
    """Look a name up; a name that has no address, or none yet, has no replicas."""
    host, _, given = name.partition(":")
    if not host or (given and not given.isdecimal()) or not 0 < int(given or port) < 65536:
        raise UsageError(f"--peers-from {name!r} is not a name", hint="Write NAME or NAME:PORT.")
    try:
        found = socket.getaddrinfo(host, int(given or port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    own = _own_addresses()
    hosts = [str(address[0]) for *_, address in found]
    return [
        f"http://[{host}]:{given or port}" if ":" in host else f"http://{host}:{given or port}"
        for host in dict.fromkeys(hosts)
        if host not in own
    ]


def _own_addresses() -> set[str]:
    """Return this machine's addresses, as its own name has them: a service may list us, too."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return set()
    return {str(address[0]) for *_, address in found}
