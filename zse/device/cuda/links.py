"""How the GPUs of one host reach each other's memory, asked of the driver without a context."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from zse.device.cuda.errors import CudaRule
from zse.device.cuda.info import get_device, seen_ordinals
from zse.device.facts import GpuLink

if TYPE_CHECKING:
    from zse.device.cuda.library import Driver
    from zse.device.facts import LinkKind

_PERFORMANCE_RANK = 1
_NATIVE_ATOMICS = 3


def read_link(driver: Driver, ordinal: int, other: int) -> GpuLink:
    """Return how a GPU reaches another one's memory.

    Raises:
        CudaError: There is no such GPU.
    """
    device, peer = get_device(driver, ordinal), get_device(driver, other)
    if not driver.read(ctypes.c_int, "cuDeviceCanAccessPeer", device, peer):
        return GpuLink(ordinal=ordinal, other=other, kind="none", performance_rank=0)

    def attribute(number: int) -> int:
        return driver.read(ctypes.c_int, "cuDeviceGetP2PAttribute", number, device, peer)

    # Only NVLink carries atomics between GPUs; nothing else that the driver says tells it apart.
    kind: LinkKind = "nvlink" if attribute(_NATIVE_ATOMICS) else "pcie"
    return GpuLink(
        ordinal=ordinal, other=other, kind=kind, performance_rank=attribute(_PERFORMANCE_RANK)
    )


def read_links(driver: Driver) -> list[GpuLink]:
    """Return the links between all GPUs that this process sees, each pair in both directions."""
    every = seen_ordinals(driver)
    return [read_link(driver, one, other) for one in every for other in every if one != other]


def require_link(driver: Driver, ordinal: int, other: int) -> GpuLink:
    """Return how a GPU reaches another one's memory.

    Raises:
        CudaError: It does not.
    """
    link = read_link(driver, ordinal, other)
    if link.kind == "none":
        raise CudaRule.NO_PEER_ACCESS(
            f"GPU {ordinal} cannot reach the memory of GPU {other}: neither NVLink nor peer "
            "access over PCIe",
        )
    return link
