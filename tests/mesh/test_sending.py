"""What a wire that is slower than what it is given does to frames, and to who looks at it."""

from __future__ import annotations

import random
import socket
import threading
import time

import pytest
from mesh_requests import all_ready, until
from slow_wire import SlowWire

from zse.errors import MeshError
from zse.mesh import worker as worker_module
from zse.mesh.frames import Frame, Kind, Signer, read_frame
from zse.mesh.sending import Sender, most_in_flight, unsent_bytes

KEY = b"k" * 32


@pytest.fixture
def pair():
    """A sender, and the socket at which what it sends arrives and waits to be read."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    caller = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    sender = Sender(caller, Signer(KEY), lambda: None)
    yield sender, accepted
    sender.close()
    for one in (caller, accepted, listener):
        one.close()


def reading(connection, seconds_each=0.0):
    """Return the frames that come, growing; ``seconds_each`` is slept for each 16 KiB."""
    frames, signer = [], Signer(KEY)

    def receive(count):
        data = bytearray()
        while len(data) < count:
            piece = connection.recv(min(count - len(data), 1 << 14))
            if not piece:
                raise MeshError("closed")
            data += piece
            time.sleep(seconds_each)
        return data

    def read():
        try:
            while True:
                frames.append(read_frame(receive, signer))
        except (MeshError, OSError):
            return

    threading.Thread(target=read, daemon=True).start()
    return frames


def test_a_beat_passes_the_long_frames_that_have_not_been_begun(pair):
    sender, connection = pair
    bodies = [random.Random(n).randbytes(300_000) for n in range(3)]
    for number, body in enumerate(bodies):
        sender.send(Frame(kind=Kind.STEP, step=number, body=body))
        until(lambda: sender._given_bytes)
    for number in range(5):
        sender.send(Frame(kind=Kind.BEAT, step=number))
    frames = reading(connection)
    until(lambda: len(frames) == 4)
    assert [(f.kind, f.step) for f in frames] == [
        (Kind.STEP, 0),
        (Kind.BEAT, 4),
        (Kind.STEP, 1),
        (Kind.STEP, 2),
    ]
    assert [bytes(f.body) for f in frames if f.kind is Kind.STEP] == bodies


def test_what_an_order_has_made_void_is_not_sent_and_what_follows_is_still_signed_right(pair):
    sender, connection = pair
    for epoch in (1, 1, 2, 1, 3):
        sender.send(Frame(kind=Kind.STEP, epoch=epoch, body=bytes(200_000)))
        until(lambda: sender._given_bytes)
    sender.drop(lambda frame: frame.epoch < 3)
    assert sender.backlog_bytes < 500_000
    frames = reading(connection)
    sender.send(Frame(kind=Kind.STEP, epoch=4))
    until(lambda: len(frames) == 3)
    assert [f.epoch for f in frames] == [1, 3, 4]
    until(lambda: not sender.backlog_bytes)


def test_the_system_is_given_no_more_than_the_wire_has_room_for(pair):
    sender, connection = pair
    sender.send(Frame(kind=Kind.STEP, body=bytes(8 << 20)))
    until(lambda: sender._given_bytes)
    time.sleep(0.1)  # in which too many would be handed over
    assert unsent_bytes(sender._socket) <= most_in_flight(sender._socket) == 1 << 20
    assert sender.backlog_bytes > 7 << 20
    frames = reading(connection)
    until(lambda: frames)
    assert len(frames[0].body) == 8 << 20


def test_bytes_that_arrive_are_a_sign_of_life_and_bytes_that_wait_are_none(pair):
    sender, connection = pair
    sender.send(Frame(kind=Kind.STEP, body=bytes(4 << 20)))

    def moves():
        before = sender.last_moved
        sender.look(time.monotonic())
        return sender.last_moved > before

    until(lambda: not any(moves() or time.sleep(0.02) for _ in range(10)))  # nobody reads
    reading(connection, seconds_each=0.005)  # some 3 MB/s
    for _ in range(3):
        until(moves)


def test_a_prompt_that_is_long_on_its_way_is_taken_for_no_loss(make_mesh, alone):
    """Rows of a prompt take seconds on this wire, and beats are behind them on the same one."""
    prompt = [random.Random(9).randrange(3, 1500) for _ in range(200)]
    requests = [(prompt, {"max_tokens": 3})]
    mesh = make_mesh(2)
    wire = SlowWire(mesh.nodes["n1"].address, 300_000)
    mesh.nodes["n1"].address = wire.address
    answers = mesh.join(load={"num_blocks": 64})
    answers.ask([4, 5, 6], max_tokens=2)
    answers.run()
    until(lambda: all_ready(mesh))
    time.sleep(1.1)  # who has just come is no witness
    for prompt, params in requests:
        answers.ask(prompt, **params)
    begun = time.monotonic()
    assert list(answers.run().values())[1:] == list(alone(requests).values())
    assert time.monotonic() - begun > 2 * worker_module._SILENT_SECONDS
    assert mesh.front.num_failovers == 0
    wire.close()
