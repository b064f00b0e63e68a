"""Every variant that goes into a kernel pack, gathered from the folders of the operations.

Nothing here imports torch or triton.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from zse.kernels.attention import variants as attention
from zse.kernels.delta import variants as delta
from zse.kernels.embed import variants as embed
from zse.kernels.exchange import variants as exchange
from zse.kernels.experts import variants as experts
from zse.kernels.gate_up import variants as gate_up
from zse.kernels.join import variants as join
from zse.kernels.latent import variants as latent
from zse.kernels.linear import variants as linear
from zse.kernels.lm_head_sample import variants as lm_head_sample
from zse.kernels.low_rank import variants as low_rank
from zse.kernels.norm import variants as norm
from zse.kernels.pool import variants as pool
from zse.kernels.rope_store import variants as rope_store
from zse.kernels.route import variants as route
from zse.kernels.turned import variants as turned

if TYPE_CHECKING:
    from zse.kernels.variant import Variant

FOLDERS = (
    linear,
    norm,
    gate_up,
    embed,
    rope_store,
    attention,
    lm_head_sample,
    low_rank,
    route,
    experts,
    delta,
    pool,
    latent,
    exchange,
    turned,
    join,
)


@cache
def all_variants() -> tuple[Variant, ...]:
    """Return the variants of every operation, each once, in a fixed order."""
    found = {variant.key: variant for folder in FOLDERS for variant in folder.VARIANTS}
    return tuple(found.values())
