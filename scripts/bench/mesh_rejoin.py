"""Where the time of a rejoin goes: from a fault that is mended to a mesh that is as it was."""

from __future__ import annotations

import statistics
import time
from typing import Any

PHASES = ("listens", "found", "opened", "caught up", "at work", "whole")
"""The node's process hears calls; the front has called it; it has a stage open; it has that stage's
keys and values; it computes it; every stage has a standby again that has all it needs."""
_LOOK_SECONDS, _MOST_SECONDS = 0.002, 60.0


def whole(front: Any, nodes: int) -> bool:
    return (
        len({duty.node for duty in front.duties}) == nodes
        and len(front._ready()) == len(front.duties)
        and not front._is_opening
    )


def watch_rejoin(front: Any, nodes: Any, victim: int) -> dict[str, float]:
    """Return the seconds from now until each phase's end, and the processor's of the node."""
    begun, name = time.monotonic(), f"n{victim}"
    reached = {
        "listens": lambda: nodes.is_listening(victim),
        "found": lambda: name in [peer.name for peer in front.peers.alive()],
        "opened": lambda: any(name in (duty.node, duty.standby) for duty in front.duties),
        "caught up": lambda: _has_all(front, name),
        "at work": lambda: any(name == duty.node for duty in front.duties),
        "whole": lambda: whole(front, len(nodes.processes)),
    }
    found: dict[str, float] = {}
    waited = list(PHASES)
    while waited:
        now = time.monotonic() - begun
        while waited and reached[waited[0]]():
            found[waited.pop(0)] = now
        if now > _MOST_SECONDS:
            raise SystemExit(f"the mesh did not come to rest: {waited[0]}")
        time.sleep(_LOOK_SECONDS)
    return {**found, "processor": nodes.cpu_seconds_of(victim)}


def _has_all(front: Any, name: str) -> bool:
    ready = front._ready()
    return any(
        name == duty.node or (name == duty.standby and duty.layers in ready)
        for duty in front.duties
    )


def told(rejoins: list[dict[str, float]]) -> dict[str, float]:
    """Return the worst rejoin, and the median of what each phase took by itself."""
    if not rejoins:
        return {"worst_rejoin_s": 0.0}
    said = {"worst_rejoin_s": round(max(one["whole"] for one in rejoins), 2)}
    said["median_rejoin_s"] = round(statistics.median(one["whole"] for one in rejoins), 2)
    before = dict.fromkeys(range(len(rejoins)), 0.0)
    for phase in PHASES:
        took = [one[phase] - before[place] for place, one in enumerate(rejoins)]
        before = {place: one[phase] for place, one in enumerate(rejoins)}
        said[f"{phase.replace(' ', '_')}_ms"] = round(1e3 * statistics.median(took))
    said["processor_ms"] = round(1e3 * statistics.median(one["processor"] for one in rejoins))
    return said
