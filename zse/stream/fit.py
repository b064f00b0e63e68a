"""Which layers of a model stay in memory and which stream through it, by the room there is.

Pure arithmetic over a file's header. What streams passes once for every step, whatever shares that
step, so the plan keeps as many bytes as fit and spreads the layers that stream evenly: while the
resident ones between them are computed, the next is on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import DeviceError, UsageError
from zse.format.spec import PAGE
from zse.records import record
from zse.stream.placement import members
from zse.units import align_up, memory_text, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.format.spec import Group, TensorEntry, ZSEHeader

LAYER_PREFIX = "layers."
FEWEST_SLOTS = 2
"""One layer is computed while the next one comes."""
_ALIGNMENT = 256


@record
class WindowPlan:
    """What lies where while a model is computed in less memory than it takes."""

    resident: tuple[str, ...]
    """Layers that stay, by the names of their groups, in order."""
    streamed: tuple[str, ...]
    """Layers that come and go, in order; the k-th always goes to slot ``k % slots``."""
    slots: int
    slot_bytes: int
    ends_bytes: int
    """Of what is no layer, and of the vectors of all layers."""
    resident_bytes: int
    """Of the resident layers."""
    streamed_bytes: int
    """That pass for each step."""

    @property
    def total_bytes(self) -> int:
        """Of memory for weights."""
        return self.ends_bytes + self.resident_bytes + self.slots * self.slot_bytes

    @property
    def num_layers(self) -> int:
        return len(self.resident) + len(self.streamed)

    @property
    def weights_bytes(self) -> int:
        """Of the whole model."""
        return self.ends_bytes + self.resident_bytes + self.streamed_bytes

    def without(self, header: ZSEHeader, names: Sequence[str]) -> WindowPlan:
        """Return the plan by which some of the resident layers stream, too."""
        return _Layers(header).plan_of({*self.streamed, *names}, self.slots)

    def steps_per_second(self, bytes_per_second: float) -> float:
        """Return the most steps a second over a link of so many bytes a second."""
        return bytes_per_second / self.streamed_bytes if self.streamed_bytes else float("inf")


def plan_window(
    header: ZSEHeader, budget_bytes: int, *, slots: int = FEWEST_SLOTS, most_resident: int = 0
) -> WindowPlan:
    """Plan the window of a model in so many bytes for weights.

    Args:
        header: The file's, of what is loaded.
        budget_bytes: Memory for weights.
        slots: Layers that stream which there is room for at once.
        most_resident: Layers that stay, at most; 0 is as many as fit.

    Raises:
        UsageError: There are too few slots, or more layers are to stay than fit.
        DeviceError: Not even the slots fit beside what is no layer; the message says what would.
    """
    if slots < FEWEST_SLOTS:
        raise UsageError(f"{slots} slots for layers were asked for; at least {FEWEST_SLOTS}")
    layers = _Layers(header)
    smallest = layers.plan(0, slots)
    if smallest.total_bytes > budget_bytes:
        raise DeviceError(
            f"{size_text(max(0, budget_bytes))} are left for weights; streaming needs at least "
            f"{size_text(smallest.total_bytes)}: {size_text(smallest.ends_bytes)} that stay "
            f"and {smallest.slots} slots of {size_text(smallest.slot_bytes)} for layers",
            hint="Allow more (--vram-gib on a GPU, --ram-gib on a CPU), keep less KV cache "
            "(--kv-gib), or use a smaller quantization.",
        )
    if most_resident:
        chosen = layers.plan(min(most_resident, layers.count), slots)
        if chosen.total_bytes > budget_bytes:
            raise UsageError(
                f"{most_resident} layers are to stay in memory, which take "
                f"{memory_text(chosen.total_bytes)}; {memory_text(budget_bytes)} are left",
                hint="Leave --resident-layers out: as many stay as fit.",
            )
        return chosen
    plans = (layers.plan(count, slots) for count in range(layers.count, 0, -1))
    return next((plan for plan in plans if plan.total_bytes <= budget_bytes), smallest)


def plan_streaming(
    header: ZSEHeader, budget_bytes: int, *, slots: int = FEWEST_SLOTS, most_resident: int = 0
) -> WindowPlan:
    """Plan as ``plan_window``; where all layers could stay, as few stream as there are slots."""
    plan = plan_window(header, budget_bytes, slots=slots, most_resident=most_resident)
    if plan.streamed:
        return plan
    return _Layers(header).plan(max(0, plan.num_layers - slots), slots)


def layers_of(header: ZSEHeader) -> list[Group]:
    """Return the groups that are layers, in order."""
    return [group for group in header.groups if group.name.startswith(LAYER_PREFIX)]


def stays(entry: TensorEntry) -> bool:
    """Whether a tensor of a layer that streams stays: what is no matrix is a thousandth of it.

    Kernels of the next layer read it too, behind the layer's own: what was put off until then.
    """
    return len(entry.shape) == 1


def vectors_bytes(header: ZSEHeader) -> int:
    """Return the room that vectors of all layers take."""
    return sum(
        align_up(part.length_bytes, _ALIGNMENT)
        for group, entries in members(header)
        if group.name.startswith(LAYER_PREFIX)
        for entry in entries
        if stays(entry)
        for part in entry.parts
    )


class _Layers:
    """The layers of a file and what is no layer, measured once for all plans that are tried."""

    def __init__(self, header: ZSEHeader) -> None:
        self._bytes = {group.name: group.length_bytes for group in layers_of(header)}
        ends = (group for group in header.groups if group.name not in self._bytes)
        self._ends_bytes = sum(align_up(group.length_bytes, PAGE) for group in ends)
        self._ends_bytes += align_up(vectors_bytes(header), PAGE)

    @property
    def count(self) -> int:
        return len(self._bytes)

    def plan(self, num_resident: int, slots: int) -> WindowPlan:
        """Return the plan that keeps so many layers, or somewhat fewer."""
        names = list(self._bytes)
        count = len(names) - num_resident
        if 0 < count < len(names):
            # A slot that a pass ends with is not the one that the next begins with.
            count = min(len(names), align_up(count, slots))
        return self.plan_of({names[index] for index in _spread(len(names), count)}, slots)

    def plan_of(self, chosen: set[str], slots: int) -> WindowPlan:
        """Return the plan by which the chosen layers stream."""
        streamed = tuple(name for name in self._bytes if name in chosen)
        resident = tuple(name for name in self._bytes if name not in chosen)
        return WindowPlan(
            resident=resident,
            streamed=streamed,
            slots=min(slots, len(streamed)),
            slot_bytes=align_up(max(self._bytes.values()), PAGE) if streamed else 0,
            ends_bytes=self._ends_bytes,
            resident_bytes=sum(align_up(self._bytes[name], PAGE) for name in resident),
            streamed_bytes=sum(self._bytes[name] for name in streamed),
        )


def _spread(total: int, count: int) -> Sequence[int]:
    """Return so many numbers below ``total``, evenly apart."""
    return [(2 * index + 1) * total // (2 * count) for index in range(count)]
