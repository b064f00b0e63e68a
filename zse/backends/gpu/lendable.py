"""Weights of a backend as replicas on its host may copy them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.stream.peers.lending import Lendable
from zse.stream.placement import WholeFile

if TYPE_CHECKING:
    from zse.device.gpu import Block, Gpu
    from zse.format.spec import ZSEHeader


def lendable_of(gpu: Gpu, header: ZSEHeader, block: Block) -> Lendable | None:
    """Return a whole file's weights in a block; None where only this process can map it."""
    export = getattr(block, "export", None)
    if export is None:
        return None

    def exported() -> int:
        gpu.make_current()
        descriptor: int = export()
        return descriptor

    return Lendable(
        header=header,
        origin_bytes=WholeFile(header).origin_bytes,
        length_bytes=block.length_bytes,
        export=exported,
    )
