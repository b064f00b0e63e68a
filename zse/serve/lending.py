"""A ready server lends the GPU memory of its weights to replicas that start on its host."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.stream.peers.lending import Lender
from zse.stream.peers.proof import read_secret

if TYPE_CHECKING:
    from zse.serve.state import LoadedModel
    from zse.server_options import ServeOptions

LOG = logging.getLogger("zse.serve")


def begin_lending(model: LoadedModel, options: ServeOptions) -> None:
    """Let replicas that start on this host copy a loaded model's weights out of GPU memory.

    That ends with the model. Weights on a CPU are not lent, nor parts of some.

    Raises:
        UsageError: There is no secret.
        StoreError: Too many replicas of this host lend already.
    """
    peering = options.peering
    if peering.share_memory == "off":
        return
    secret = read_secret(peering.secret, peering.secret_file)
    lender = model.engine.lend(
        lambda lendable: Lender(lendable, secret, most_borrowers=peering.share_connections)
    )
    if lender is not None:
        LOG.info("weights are lent to replicas on this host")
