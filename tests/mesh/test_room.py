"""What may wait to be dealt with is bounded, whoever sends it."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace

from mesh_requests import until

from zse.errors import RankError
from zse.mesh import node as node_module
from zse.mesh import worker as worker_module
from zse.mesh.frames import Frame, Kind
from zse.mesh.messages import AskLook, Done, Order, Place, decode, encode
from zse.mesh.node import Node, NodeSetup
from zse.mesh.room import Room
from zse.mesh.worker import Worker


def test_who_finds_no_room_waits_until_there_is():
    room, taken = Room(100), []

    def take(num_bytes):
        room.take(num_bytes)
        taken.append(num_bytes)

    take(80)
    waiting = threading.Thread(target=take, args=(30,))
    waiting.start()
    take(20)  # for this one there is
    assert taken == [80, 20]
    room.give(80)
    waiting.join(60)
    assert taken == [80, 20, 30]


def test_what_is_larger_than_all_of_it_is_held_alone():
    room = Room(100)
    room.take(500)
    waiting = threading.Thread(target=room.take, args=(1,))
    waiting.start()
    room.close()  # nobody waits for a node that leaves
    waiting.join(60)
    assert not waiting.is_alive()


def test_frames_whose_order_does_not_come_are_kept_up_to_a_bound(monkeypatch, caplog):
    monkeypatch.setattr(worker_module, "_MOST_EARLY_BYTES", 1000)
    worker = Worker("n", SimpleNamespace(), lambda _: None)
    for step in range(10):
        worker.take(Frame(kind=Kind.STEP, epoch=7, step=step, body=bytes(300)))
    assert [frame.step for frame in worker._early] == [0, 1, 2]
    assert "its order does not come" in caplog.text


def test_a_node_answers_so_many_questions_at_once_and_refuses_more(monkeypatch):
    monkeypatch.setattr(node_module, "_MOST_ASKS_AT_ONCE", 2)
    go_on = threading.Event()
    monkeypatch.setattr(node_module, "look", lambda *_: go_on.wait(60))
    node, answers = Node(NodeSetup(name="n", secret=b"x"), lambda: None, lambda _: None), []
    link = SimpleNamespace(peer=SimpleNamespace(purpose="survey"), send=answers.append)
    for number in range(3):
        ask = Frame(kind=Kind.ASK, step=number, head=encode(AskLook("nowhere:1", 1.0)))
        node._take(link, ask)
    assert [frame.step for frame in answers] == [2]
    assert "2 questions to answer already" in decode(answers[0].head, Done).error
    go_on.set()
    until(lambda: len(answers) == 3)
    node._take(link, Frame(kind=Kind.ASK, step=3, head=encode(AskLook("nowhere:1", 1.0))))
    until(lambda: len(answers) == 4)
    node._listener.close()


def test_a_worker_outlives_what_fails_while_it_has_nothing_to_do(caplog):
    class Broken:
        """A stage whose rank is lost: it has nothing to send to a standby."""

        layers, is_primary = (0, 2), True

        def blocks_to_settle(self, *_, **__):
            tried.append(1)
            raise error

        def close(self):
            pass

    tried, error = [], RankError("rank 1 was ended by SIGKILL")
    worker = Worker("n", SimpleNamespace(backlog_bytes=lambda *_: 0), lambda _: None)
    place = Place(0, 2, "other", "nowhere:1")
    worker._order = Order(1, [], [], [place], 0, [])
    worker._hosts[0, 2] = Broken()
    tasks, done = queue.SimpleQueue(), []
    thread = threading.Thread(target=worker.run, args=(tasks,))
    thread.start()
    until(lambda: tried)
    error = ValueError("anything else")
    tasks.put(done.append)  # what comes is done, and settling is tried again
    until(lambda: len(tried) > 1)
    tasks.put(None)
    thread.join(60)
    assert done
    assert "anything else" in caplog.text
    assert "SIGKILL" not in caplog.text  # who watches the ranks has said it
