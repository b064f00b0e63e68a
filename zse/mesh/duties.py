"""Who computes which stage and who stands by: what a loss, a join and a free node change. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@record
class Duty:
    """One stage."""

    first_layer: int
    end_layer: int
    node: str
    standby: str = ""
    """Empty: nobody, yet."""
    devices: int = 1
    """Of a node that share each of the layers."""

    @property
    def layers(self) -> tuple[int, int]:
        return self.first_layer, self.end_layer


Duties = tuple[Duty, ...]


def after_loss(duties: Duties, lost: str, ready: Collection[tuple[int, int]]) -> Duties | None:
    """Return the duties without a node; None where a stage of it has no standby that is ready.

    Args:
        duties: As they were.
        lost: The node.
        ready: Layers of the stages whose standbys have what they need.
    """
    changed = []
    for duty in duties:
        if duty.standby == lost:
            changed.append(replace(duty, standby=""))
        elif duty.node != lost:
            changed.append(duty)
        elif duty.standby and duty.layers in ready:
            changed.append(replace(duty, node=duty.standby, standby=""))
        else:
            return None
    return tuple(changed)


def next_standby(
    duties: Duties, alive: Sequence[str], refused: Collection[tuple[str, int]] = ()
) -> tuple[int, str] | None:
    """Return a stage that lacks a standby, and who shall be it; None: all have one, or none can.

    A node without duties comes first, since the stage can go over to it then; else the node of the
    stage before, whose log has what a standby is sent again.

    Args:
        duties: As they are.
        alive: Nodes that work may be given to.
        refused: Nodes and places of stages that they could not open.
    """
    busy = [duty.node for duty in duties]
    free = [name for name in alive if name not in busy]
    for name in free:  # a stage of a node that has several goes over to it
        for place, duty in enumerate(duties):
            is_crowded = busy.count(duty.node) > 1 and duty.standby not in free
            if is_crowded and (name, place) not in refused and name != duty.standby:
                return place, name
    for place, duty in enumerate(duties):
        if duty.standby in alive:
            continue
        before = [busy[place - step] for step in range(1, len(duties))]
        for name in [*free, *before, *alive]:
            if name in alive and name != duty.node and (name, place) not in refused:
                return place, name
    return None


def move_to_free(duties: Duties, ready: Collection[tuple[int, int]]) -> Duties | None:
    """Return duties in which a stage of a crowded node goes over to a standby that has none."""
    busy = [duty.node for duty in duties]
    for place, duty in enumerate(duties):
        is_free = duty.standby and duty.standby not in busy
        if is_free and busy.count(duty.node) > 1 and duty.layers in ready:
            moved = replace(duty, node=duty.standby, standby=duty.node)
            return (*duties[:place], moved, *duties[place + 1 :])
    return None


def moved_bytes(before: Duties, after: Duties, sizes: Mapping[tuple[int, int], int]) -> int:
    """Return the bytes of stages that one who did not hold them computes now."""
    held = {(d.layers, who) for d in before for who in (d.node, d.standby)}
    return sum(sizes[duty.layers] for duty in after if (duty.layers, duty.node) not in held)
