"""Who is there, as anybody who knows the secret may ask, without taking a front's place."""

from __future__ import annotations

import time
from itertools import permutations
from typing import TYPE_CHECKING, Any

from zse import __version__
from zse.errors import ZSEError
from zse.mesh.messages import AskLook, Look
from zse.mesh.peers import Peers, describe, learn_facts
from zse.units import GIB

if TYPE_CHECKING:
    from zse.mesh.finding import Finder
    from zse.mesh.messages import Facts
    from zse.mesh.peers import Peer

_LOOK_BYTES = 1 << 20
_POLL_SECONDS = 0.02
_STATE_SECONDS = 0.2


def survey(finder: Finder, secret: bytes, *, seconds: float) -> dict[str, Any]:
    """Return nodes, links between them, and what is wrong, in plain values.

    Under ``plan`` stands what ``zse.mesh.facts`` reads.
    """
    peers = Peers(secret, lambda _: None, lambda *_: None, purpose="survey")
    try:
        problems = _connect(peers, finder, seconds)
        peers.beat()
        time.sleep(_STATE_SECONDS)
        there = sorted(peers.alive(), key=lambda peer: peer.name)
        learn_facts(there)
        for peer in there:
            if peer.facts and peer.facts.version != __version__:
                problems[peer.name] = (
                    f"{peer.name} runs zse {peer.facts.version}: no front takes it"
                )
        links = _measured_links(there, problems)
        return {
            "nodes": [describe(peer) for peer in there],
            "plan": {
                "nodes": [_planned(peer.name, peer.facts) for peer in there if peer.facts],
                "links": links,
            },
            "problems": list(problems.values()),
        }
    finally:
        peers.close()


def _connect(peers: Peers, finder: Finder, seconds: float) -> dict[str, str]:
    """Connect to every node that is found in some seconds; return what is wrong, by address."""
    problems: dict[str, str] = {}
    deadline, asked = time.monotonic() + seconds, set[str]()
    while True:
        for address in sorted(set(finder.addresses()) - asked):
            asked.add(address)
            try:
                peers.connect(address, 1.0)
            except ZSEError as error:
                problems[address] = f"{address}: {error}"
        if time.monotonic() > deadline:
            return problems
        time.sleep(_POLL_SECONDS)


def _measured_links(there: list[Peer], problems: dict[str, str]) -> list[dict[str, Any]]:
    """Have each node look at each other one; who does not reach whom goes to the problems."""
    links = []
    for peer, other in permutations(there, 2):
        look = peer.answer(AskLook(other.address, 2.0, _LOOK_BYTES), Look)
        if not look.is_there:
            problems[f"{peer.name}/{other.name}"] = (
                f"{peer.name} does not reach {other.name} at {other.address}: {look.error}"
            )
            continue
        links.append(
            {
                "from": peer.name,
                "to": other.name,
                "ms": round(look.seconds * 1e3, 3),
                "mbit_per_s": round(look.bytes_per_second * 8 / 1e6, 1),
            }
        )
    return links


def _planned(name: str, facts: Facts) -> dict[str, Any]:
    return {
        "name": name,
        "memory_gib": round(facts.memory_bytes / GIB, 3),
        "gb_per_s": round(facts.bytes_per_second / 1e9, 3),
        "devices": max(facts.shares),
        "all_reduce_us": round(facts.sums_seconds * 1e6, 1),
    }
