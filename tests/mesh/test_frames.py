from __future__ import annotations

import random
import socket
import threading

import pytest

from zse.errors import MeshError, RefusedError
from zse.mesh.frames import HEADER_BYTES, Frame, Kind, Signer, packed, read_frame
from zse.mesh.handshake import Introduction, shake_hands
from zse.mesh.link import Link


def reader_of(data):
    left = bytearray(data)

    def receive(count):
        if len(left) < count:
            raise MeshError("the peer hung up")
        piece = left[:count]
        del left[:count]
        return piece

    return receive


def bytes_of(*frames, key=b"k" * 32):
    signer = Signer(key)
    return b"".join(bytes(part) for frame in frames for part in packed(frame, signer))


def random_frame(rng):
    return Frame(
        kind=rng.choice(list(Kind)),
        codec=rng.randrange(5),
        epoch=rng.randrange(1 << 32),
        step=rng.randrange(1 << 64),
        head=rng.randbytes(rng.randrange(50)),
        body=rng.randbytes(rng.randrange(300)),
    )


def test_frames_come_out_as_they_went_in():
    rng = random.Random(1)
    frames = [random_frame(rng) for _ in range(50)]
    receive, signer = reader_of(bytes_of(*frames)), Signer(b"k" * 32)
    for frame in frames:
        found = read_frame(receive, signer)
        assert (found.kind, found.codec, found.epoch, found.step) == (
            frame.kind, frame.codec, frame.epoch, frame.step,
        )  # fmt: skip
        assert (bytes(found.head), bytes(found.body)) == (frame.head, frame.body)


def test_one_changed_bit_anywhere_ends_the_link():
    rng = random.Random(2)
    data = bytes_of(random_frame(rng))
    for _ in range(200):
        place = rng.randrange(len(data) * 8)
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(MeshError):
            read_frame(reader_of(changed), Signer(b"k" * 32))


def test_a_frame_that_is_repeated_or_left_out_is_noticed():
    first, second = Frame(kind=Kind.STEP, step=1), Frame(kind=Kind.STEP, step=2)
    data = bytes_of(first, second)
    half = HEADER_BYTES
    for order in (data[:half] * 2, data[half:]):
        receive, signer = reader_of(order), Signer(b"k" * 32)
        if order[:half] == data[:half]:
            read_frame(receive, signer)
        with pytest.raises(MeshError, match="changed, repeated or left out"):
            read_frame(receive, signer)


def test_a_length_without_bounds_is_refused_before_anything_is_read():
    data = bytearray(bytes_of(Frame(kind=Kind.STEP)))
    data[HEADER_BYTES - 16 - 8 : HEADER_BYTES - 16] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(MeshError, match="at most"):
        read_frame(reader_of(data), Signer(b"k" * 32))


def shaken(secret_a, secret_b):
    """Return both ends' channels, or what each raised."""
    left, right = socket.socketpair()
    found = {}

    def side(name, connection, secret):
        try:
            own = Introduction(name, "node")
            found[name] = shake_hands(connection, secret, own, is_caller=name == "a", seconds=1)
        except (MeshError, RefusedError) as error:
            found[name] = error
            connection.close()

    # A socket pair has no TCP_NODELAY: a listener of this machine has.
    left.close()
    right.close()
    server = socket.create_server(("127.0.0.1", 0))
    caller = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    server.close()
    threads = [
        threading.Thread(target=side, args=("a", caller, secret_a)),
        threading.Thread(target=side, args=("b", accepted, secret_b)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found["a"], found["b"]


def test_both_sides_of_one_secret_speak_and_know_each_other():
    a, b = shaken(b"secret", b"secret")
    assert (a.peer.node, b.peer.node) == ("b", "a")
    got = []
    done = threading.Event()
    left = Link(a, lambda *_: None, lambda *_: None).start()
    right = Link(b, lambda _, frame: (got.append(bytes(frame.body)), done.set()), lambda *_: None)
    right.start()
    body = random.Random(3).randbytes(4 << 20)  # more than a socket takes at once
    left.send(Frame(kind=Kind.STEP, body=body))
    assert done.wait(60)
    assert got == [body]
    left.close()
    right.close()


def test_who_does_not_know_the_secret_is_refused_by_both():
    a, b = shaken(b"secret", b"another")
    assert isinstance(a, (RefusedError, MeshError))
    assert isinstance(b, (RefusedError, MeshError))
    assert RefusedError in {type(a), type(b)}


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 60, b"zseM\x01\xff\xff" + bytes(32)]
)
def test_a_stranger_is_turned_away_in_time(sent):
    server = socket.create_server(("127.0.0.1", 0))
    caller = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    caller.sendall(sent)
    with pytest.raises(MeshError):
        shake_hands(accepted, b"secret", Introduction("b", "node"), is_caller=False, seconds=0.2)
    for one in (caller, accepted, server):
        one.close()
