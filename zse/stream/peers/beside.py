"""What a start on a GPU has to do with replicas of its host: it borrows, and may lend later."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.errors import DeviceError, UsageError
from zse.stream.peers.borrowing import begin_borrowing
from zse.stream.peers.copied import CopiedLoad
from zse.stream.peers.proof import read_secret
from zse.stream.peers.same_host import is_known

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.device.gpu import Block, Gpu
    from zse.server_options import PeerOptions
    from zse.stream.peers.borrowing import Borrowing
    from zse.stream.peers.copied import Load
    from zse.stream.placement import Placement
    from zse.stream.plan import ReadPlan

_LOG = logging.getLogger("zse.stream")
_OFFER_SECONDS = 0.5
"""An offer that is not there by then, while the GPU was opened, comes from who has no time."""


class PeerMemory:
    """GPU memory that replicas of one host copy weights out of. For one start.

    Args:
        options: What is lent, and whether anybody is asked.
    """

    def __init__(self, options: PeerOptions) -> None:
        self._options = options
        self._borrowing: Borrowing | None = None

    def look(self, placement: Placement) -> bool:
        """Look for replicas that lend, which are asked for a file's groups; whether any is there.

        Whoever does not begin a load afterwards calls ``close``.
        """
        options = self._options
        if not (options.peers or options.peers_from):
            return False
        try:
            secret = read_secret(options.secret, options.secret_file)
        except UsageError as error:
            _LOG.warning("replicas on this host are not asked: %s", error)
            return False
        groups = placement.header.groups
        digests = {group.sha256 for group in groups if is_known(group.sha256)}
        self._borrowing = begin_borrowing(secret, digests)
        return self._borrowing is not None

    def allocate(self, gpu: Gpu, length_bytes: int) -> Block:
        """Return memory for weights, which can be lent if that is wanted, and can be.

        Raises:
            DeviceError: So much is not free.
        """
        if self._options.share_weights:
            try:
                return gpu.allocate_shared(length_bytes)
            except DeviceError as error:
                if error.is_out_of_memory:
                    raise
                _LOG.warning("weights are not lent to replicas on this host: %s", error)
        return gpu.allocate(length_bytes)

    def begin_load(
        self,
        gpu: Gpu,
        plan: ReadPlan,
        destination_address: int,
        begin_rest: Callable[[Sequence[str]], Load],
    ) -> CopiedLoad | None:
        """Begin to copy from a replica that was found; None where none lends anything.

        The arguments are those of ``CopiedLoad``.
        """
        borrowing, self._borrowing = self._borrowing, None
        loan = None if borrowing is None else borrowing.take(_OFFER_SECONDS)
        if loan is None:
            return None
        return CopiedLoad(gpu, loan, plan, destination_address, begin_rest)

    def close(self) -> None:
        """Give back what was found for a load that was not begun."""
        borrowing, self._borrowing = self._borrowing, None
        if borrowing is not None:
            borrowing.close()
