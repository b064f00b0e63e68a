"""Who is given up on a machine with more to do than processors: who hangs, and nobody else."""

from __future__ import annotations

import random
import socket
from types import SimpleNamespace

import pytest

from zse.mesh.finding import Finder
from zse.mesh.judging import Judge
from zse.mesh.membership import Patience
from zse.mesh.messages import NodeState
from zse.mesh.sending import unread_bytes

TICK_SECONDS, BEAT_SECONDS = 0.01, 0.04
MOST_SECONDS = Patience().silent_seconds + Patience().most_late_seconds + Patience().verdict_seconds


class Machines:
    """Nodes and a front in a time of their own: each may stand still for a while."""

    def __init__(self, names, now=0.0):
        self.now = now
        self.lost = {}
        self.stands_until = dict.fromkeys([*names, "front"], 0.0)
        self.peers = SimpleNamespace(
            by_name={name: self._peer(name) for name in names},
            alive=lambda: [p for n, p in self.peers.by_name.items() if n not in self.lost],
            give_up=lambda name, why: self.lost.setdefault(name, (self.now, why)),
        )
        self.judge = Judge(self.peers, Finder(list), None, lambda _: True)
        for name in names:
            self.judge.membership.joined(name, now)

    def _peer(self, name):
        link = SimpleNamespace(last_heard=0.0, has_unread=False)
        no_vouching = SimpleNamespace(add_done_callback=lambda _: None)
        return SimpleNamespace(
            name=name, address=name, link=link, state=NodeState(), ask=lambda _: no_vouching
        )

    def stall(self, name, seconds):
        self.stands_until[name] = max(self.stands_until[name], self.now + seconds)

    def runs(self, name):
        return self.now >= self.stands_until[name]

    def was_heard(self, name):
        return self.now - self.peers.by_name[name].link.last_heard <= BEAT_SECONDS

    def tick(self):
        """Let a hundredth of a second pass: who runs answers beats, and the front looks."""
        self.now += TICK_SECONDS
        if not self.runs("front"):
            return
        for name, peer in self.peers.by_name.items():
            if self.runs(name) and self.now - peer.link.last_heard >= BEAT_SECONDS:
                stood = self.now - peer.link.last_heard - BEAT_SECONDS
                late = max(peer.state.late_milliseconds, stood * 1e3)
                peer.state = NodeState(late_milliseconds=int(late))
                peer.link.last_heard = self.now
        self.judge.look(self.now, 0)

    def run(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.tick()


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_given_up_on_machines_that_stand_still_and_who_hangs_is_in_time(seed):
    rng = random.Random(seed)
    machines = Machines(["a", "b", "c", "d"])
    for name in "abcd":
        machines.stall(name, 0.3)
        machines.run(0.5)
    for _ in range(60):
        machines.run(rng.uniform(0.0, 0.3))
        who = rng.choice(["a", "b", "c", "d", "front", "all"])
        if who == "all":
            seconds = rng.uniform(0.0, 2.0)
            for name in "abcd":  # a wire, or a switch, that stands still
                machines.stall(name, seconds)
        elif who == "front":
            machines.stall(who, rng.uniform(0.0, 3.0))
        elif machines.was_heard(who):  # else it would stand for longer than anybody waits
            machines.stall(who, rng.uniform(0.0, 0.5))
    machines.run(4.0)
    assert machines.lost == {}
    machines.stall("c", 1e9)
    begun = machines.now
    machines.run(1.5)
    assert list(machines.lost) == ["c"]
    at, why = machines.lost["c"]
    assert "dead" in why
    assert at - begun < MOST_SECONDS + 0.1


def test_what_waits_to_be_read_here_has_been_said():
    machines = Machines(["a", "b"])
    machines.run(0.5)
    machines.stall("a", 1e9)
    machines.peers.by_name["a"].link.has_unread = True  # the thread that reads does not run
    machines.run(2.0)
    assert machines.lost == {}
    machines.peers.by_name["a"].link.has_unread = False
    machines.run(2.0)
    assert list(machines.lost) == ["a"]


def test_what_was_sent_and_not_read_can_be_counted():
    here, there = socket.socketpair()
    with here, there:
        assert unread_bytes(here) == 0
        there.sendall(b"a beat")
        assert unread_bytes(here) == 6
        here.recv(6)
        assert unread_bytes(here) == 0
    assert unread_bytes(here) == 0  # it is closed
