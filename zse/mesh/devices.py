"""What of its host a node computes on, and how many of that may share each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.device.open import check_device, runs_on_gpu
from zse.engine.ranks.devices import named_gpus
from zse.errors import MeshError, UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable


@record
class NodeDevices:
    """Devices by their names, of which a stage gets the first ones."""

    names: tuple[str, ...] = ("cpu",)
    shares: tuple[int, ...] = (1,)
    """How many of them may share each layer: the plan says which of these numbers do."""

    def first(self, count: int) -> tuple[str, ...]:
        """Return the devices of a stage that so many share.

        Raises:
            MeshError: This node computes on other numbers of them.
        """
        if count not in self.shares:
            may = " or ".join(map(str, self.shares))
            raise MeshError(
                f"layers that {count} devices share were asked for; here {may} of "
                f"{', '.join(self.names)} compute a layer",
                hint="A standby needs as many devices as who computes: see --tensor-parallel.",
            )
        return self.names[:count]


def devices_of_node(
    device: str, tensor_parallel: int, gpus: str, count_gpus: Callable[[], int]
) -> NodeDevices:
    """Return what a node computes on.

    Args:
        device: ``cpu``, ``cuda`` for all GPUs of this host, or ``cuda:N`` for one.
        tensor_parallel: Devices that share each layer; 0: as many as the plan says.
        gpus: Numbers of GPUs, with commas; empty: as ``device`` says.
        count_gpus: Says how many there are.

    Raises:
        UsageError: These do not go together.
        DeviceError: The device is unknown.
    """
    if not runs_on_gpu(device):
        check_device(device)
        if gpus:
            raise UsageError(f"GPUs {gpus} are named, and {device} is what computes")
        names = (device,) * max(tensor_parallel, 1)
    else:
        ordinals = named_gpus(gpus) or _ordinals(device, tensor_parallel, count_gpus)
        names = tuple(f"cuda:{ordinal}" for ordinal in ordinals)
    if tensor_parallel > len(names):
        raise UsageError(
            f"{tensor_parallel} devices are to share each layer, and there are {len(names)}: "
            f"{', '.join(names)}",
            hint="Name as many with --gpus, or use a smaller --tensor-parallel.",
        )
    if tensor_parallel:
        return NodeDevices(names=names[:tensor_parallel], shares=(tensor_parallel,))
    shares = [count for count in range(1, len(names) + 1) if len(names) % count == 0]
    return NodeDevices(names=names, shares=tuple(shares))


def _ordinals(device: str, tensor_parallel: int, count_gpus: Callable[[], int]) -> list[int]:
    first = check_device(device)
    if tensor_parallel:
        return list(range(first, first + tensor_parallel))
    return [first] if ":" in device else list(range(max(count_gpus(), 1)))
