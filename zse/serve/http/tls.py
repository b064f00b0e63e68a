"""HTTPS: certificates from files, read again when they change.

Whoever renews certificates replaces the files; connections that begin after that see the new ones.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import UsageError

if TYPE_CHECKING:
    from zse.server_options import HTTPOptions

LOG = logging.getLogger("zse.serve")


class Certificates:
    """A context for handshakes, and the files that it is made of.

    Raises:
        UsageError: The files cannot be read, or hold no certificate with its key.
    """

    def __init__(self, certfile: str, keyfile: str) -> None:
        self._paths = [path for path in (certfile, keyfile) if path]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        self._seen = self._look()
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"no certificate with its key in {' and '.join(self._paths)}: {_reason(error)}",
                hint="Both are PEM; --ssl-keyfile names the key where the first file has none.",
            ) from None

    def refresh(self) -> None:
        """Read the files again where they have changed."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            # Half replaced, perhaps: the ones in use stay, and the next change is read.
            LOG.warning("the new certificates cannot be used: %s", _reason(error))
            return
        LOG.info("certificates were read again")

    def _load(self) -> None:
        cert, *key = self._paths
        self.context.load_cert_chain(cert, *key)

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Return what changes with the files; None for one that is not there."""
        return [_mark(path) for path in self._paths]


def certificates_of(options: HTTPOptions) -> Certificates:
    """Return the certificates that the options name.

    Raises:
        UsageError: As ``Certificates``; or there is a key without a certificate.
    """
    if not options.ssl_certfile:
        raise UsageError(
            "--ssl-keyfile needs --ssl-certfile",
            hint="Give both, or the certificates and the key in one file as --ssl-certfile.",
        )
    return Certificates(options.ssl_certfile, options.ssl_keyfile)


def _mark(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
