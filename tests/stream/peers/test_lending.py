"""GPU memory that is lent on one host: who gets it, what is believed, and when that ends.

The memory is a file without a name here: descriptors travel as those of a GPU do.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from child_processes import wait_until

from tests.stream.conftest import write_model
from zse.errors import StoreError
from zse.format.reader import ZSEReader
from zse.stream.peers import lending, same_host
from zse.stream.peers.borrowing import begin_borrowing, borrowed
from zse.stream.peers.lending import Lendable, Lender
from zse.stream.peers.same_host import (
    LoanRefusedError,
    Offer,
    lender_proof,
    new_socket,
    read_offer,
    socket_names,
    split_proof,
)
from zse.stream.placement import WholeFile

OFFERED = Offer(host="here", length_bytes=100, places={"a" * 64: (10, 90)})


class Memory:
    """Weights of a file in memory that others can map."""

    def __init__(self, path):
        with ZSEReader(path) as reader:
            self.header = reader.header
        whole = WholeFile(self.header)
        self.bytes = path.read_bytes()[whole.origin_bytes :][: whole.length_bytes]
        self.descriptor = os.memfd_create("weights")
        os.write(self.descriptor, self.bytes)
        self.lendable = Lendable(
            header=self.header,
            origin_bytes=whole.origin_bytes,
            length_bytes=len(self.bytes),
            export=lambda: os.dup(self.descriptor),
        )

    @property
    def digests(self):
        return {group.sha256 for group in self.header.groups}


@pytest.fixture
def memory(tmp_path):
    found = Memory(write_model(tmp_path / "model.zse", [3, 20, 1]))
    yield found
    os.close(found.descriptor)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A machine that stands still for seconds ends no handshake."""
    for module in ("lending", "borrowing"):
        monkeypatch.setattr(f"zse.stream.peers.{module}.HANDSHAKE_SECONDS", 60)


@pytest.fixture
def secret():
    """One of its own for each test: others lend on this host at the same time."""
    return secrets.token_bytes(16)


@contextmanager
def lent(lendable, secret, **options):
    lender = Lender(lendable, secret, **{"lease_seconds": 600, **options})
    try:
        yield lender
    finally:
        lender.close()


def borrow(secret, digests):
    """Return a loan, or None; as long as it takes."""
    borrowing = begin_borrowing(secret, digests)
    return None if borrowing is None else borrowing.take(60)


def connected(secret):
    for name in socket_names(secret):
        connection = new_socket()
        try:
            connection.connect(name)
        except OSError:
            connection.close()
        else:
            return connection
    raise AssertionError("nobody lends")


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_who_knows_the_secret_gets_the_memory_and_where_each_group_lies_in_it(memory, secret):
    with lent(memory.lendable, secret) as lender:
        loan = borrow(secret, memory.digests)
        assert loan.length_bytes == len(memory.bytes)
        with mmap.mmap(loan.descriptor, loan.length_bytes, prot=mmap.PROT_READ) as mapped:
            for group in memory.header.groups:
                place = loan.place_of(group.sha256, group.length_bytes)
                expected = memory.bytes[place : place + group.length_bytes]
                assert mapped[place : place + group.length_bytes] == expected
        assert loan.place_of("f" * 64, 4096) is None
        assert loan.place_of(memory.header.groups[0].sha256, 4096) is None  # it is longer
        assert loan.is_valid
        loan.close()
        loan.close()
        wait_until(lambda: not lender._borrowers)


def test_a_loan_ends_before_its_lender_touches_the_memory(memory, secret):
    with lent(memory.lendable, secret) as lender:
        loan = borrow(secret, memory.digests)
        closing = threading.Thread(target=lender.close)
        closing.start()
        wait_until(lambda: not loan.is_valid)
        loan.close()
        closing.join()
        assert begin_borrowing(secret, memory.digests) is None or not borrow(secret, memory.digests)


def test_a_lender_waits_no_longer_for_a_borrower_that_stands_still(memory, secret, caplog):
    with lent(memory.lendable, secret) as lender:
        loan = borrow(secret, memory.digests)
        lender.close()
        assert not loan.is_valid
        assert "still holds GPU memory" in caplog.text
        loan.close()


def test_a_loan_that_lasts_too_long_is_over(memory, secret):
    with lent(memory.lendable, secret, lease_seconds=0.05) as lender:
        loan = borrow(secret, memory.digests)
        wait_until(lambda: not loan.is_valid)
        wait_until(lambda: not lender._borrowers)
        loan.close()


def test_more_borrowers_than_places_are_sent_away_until_one_has_gone(memory, secret):
    with lent(memory.lendable, secret, most_borrowers=1):
        first = borrow(secret, memory.digests)
        with pytest.raises((LoanRefusedError, OSError)):
            borrowed(connected(secret), secret)
        first.close()
        found = []

        def is_there():
            found.append(borrow(secret, memory.digests))
            return found[-1] is not None

        wait_until(is_there)
        found[-1].close()


def test_nobody_is_asked_where_nobody_lends(secret):
    assert begin_borrowing(secret, {"a" * 64}) is None


def test_who_does_not_know_the_secret_gets_nothing(memory, secret):
    count = open_descriptors()
    with lent(memory.lendable, secret) as lender:
        assert begin_borrowing(secret + b"x", memory.digests) is None  # they meet nowhere
        with pytest.raises((LoanRefusedError, OSError)):
            borrowed(connected(secret), b"what somebody made up")
        for said in (b"", b"x", bytes(4000), b"0" * 96):
            with connected(secret) as stranger:
                assert len(stranger.recv(4096)) == 32
                stranger.sendall(said or b"\0")
                assert socket.recv_fds(stranger, 4096, 1)[:2] == (b"", [])
        assert lender.num_loans == 0
        wait_until(lambda: not any(t.name.startswith("peers-lend-") for t in threading.enumerate()))
    wait_until(lambda: open_descriptors() <= count)


def test_who_says_nothing_holds_no_place_for_long(memory, secret, monkeypatch):
    monkeypatch.setattr(lending, "HANDSHAKE_SECONDS", 0.05)
    with lent(memory.lendable, secret, most_borrowers=1), connected(secret) as silent:
        silent.recv(4096)
        assert silent.recv(4096) == b""  # sent away
    with lent(memory.lendable, secret, most_borrowers=1), connected(secret) as silent:
        silent.recv(4096)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child asks, and ends
def test_a_process_of_another_user_is_sent_away_whatever_it_knows(memory, secret):
    with lent(memory.lendable, secret) as lender:
        child = os.fork()
        if child == 0:
            try:
                os.setuid(65534)
                connection = connected(secret)
                os._exit(0 if connection.recv(4096) == b"" else 1)
            except ConnectionError:
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a child must not come back
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert lender.num_loans == 0


def test_a_lender_of_another_user_is_not_believed(memory, secret, monkeypatch):
    """Whose process it is, the kernel says; here it is asked whether that is another one's."""
    with lent(memory.lendable, secret):
        connection = connected(secret)
        monkeypatch.setattr(same_host.os, "geteuid", lambda: 123456)
        with pytest.raises(LoanRefusedError, match=r"user \d+ is at the socket of user 123456"):
            borrowed(connection, secret)


def test_a_replica_of_another_boot_is_not_believed(memory, secret, monkeypatch):
    monkeypatch.setattr(lending, "host_identity", lambda: "elsewhere net:[1]")
    with (
        lent(memory.lendable, secret),
        pytest.raises(LoanRefusedError, match="on another host: 'elsewhere"),
    ):
        borrowed(connected(secret), secret)


def test_a_system_that_does_not_say_which_it_is_lends_nothing(memory, secret, monkeypatch):
    monkeypatch.setattr(lending, "host_identity", lambda: "")
    with pytest.raises(StoreError, match="does not say which host it is"):
        Lender(memory.lendable, secret)


def test_a_digest_of_zeros_is_never_offered(memory):
    from dataclasses import replace

    first, *rest = memory.header.groups
    header = replace(memory.header, groups=(replace(first, sha256="0" * 64), *rest))
    offer = replace(memory.lendable, header=header).offer()
    assert set(offer.places) == memory.digests - {first.sha256}


def test_the_one_who_has_the_most_is_borrowed_from(memory, secret, tmp_path):
    other = Memory(write_model(tmp_path / "other.zse", [3, 9], seed=0))  # shares the first group
    with lent(other.lendable, secret), lent(memory.lendable, secret):
        for _ in range(4):  # in any order
            loan = borrow(secret, memory.digests)
            assert loan.num_known(memory.digests) == 3
            loan.close()
    assert other.digests & memory.digests
    os.close(other.descriptor)


def test_who_has_nothing_of_use_is_not_borrowed_from(memory, secret):
    with lent(memory.lendable, secret) as lender:
        assert borrow(secret, {"e" * 64}) is None
        wait_until(lambda: not lender._borrowers)


def test_no_more_lend_than_are_looked_for(memory, secret, monkeypatch):
    monkeypatch.setattr(same_host, "MOST_LENDERS", 2)
    with (
        lent(memory.lendable, secret),
        lent(memory.lendable, secret),
        pytest.raises(StoreError, match="2 replicas of this host lend"),
    ):
        Lender(memory.lendable, secret)


# --- lenders that do other things -----------------------------------------------------------------


@contextmanager
def standing(secret, act):
    """A process of this user that stands where a lender would, and knows the secret."""
    listener = new_socket()
    listener.bind(socket_names(secret)[0])
    listener.listen(1)

    def run():
        connection, _ = listener.accept()
        with connection:
            act(connection)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    listener.close()


def offering(secret, descriptors, body=None):
    """Return what answers as a lender does, but for what it sends."""
    body = OFFERED.to_bytes() if body is None else body

    def act(connection):
        connection.sendall(b"c" * 32)
        _, theirs = split_proof(connection.recv(4096))
        proof = lender_proof(secret, "c" * 32, theirs.decode(), body).encode()
        if descriptors:
            socket.send_fds(connection, [proof + body], descriptors)
        else:
            connection.sendall(proof + body)

    return act


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda secret: lambda connection: None, ""),  # it dies at once
        (lambda secret: lambda connection: connection.sendall(b"c" * 32), ""),  # after a word
        (lambda secret: offering(secret, []), "0 descriptors"),
        (lambda secret: offering(secret, [0, 0]), "1 descriptors|does not"),
        (lambda secret: offering(b"another secret entirely", [0]), "does not know"),
        (lambda secret: offering(secret, [0], b"{}"), "cannot be read"),
        (lambda secret: offering(secret, [0]), "another host"),
    ],
)
def test_a_lender_that_does_otherwise_lends_nothing_and_leaves_nothing(secret, act, message):
    count = open_descriptors()
    with (
        standing(secret, act(secret)),
        pytest.raises((LoanRefusedError, OSError), match=message or None),
    ):
        borrowed(connected(secret), secret)
    assert open_descriptors() <= count


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"nothing",
        b"[" * 5000,
        b'{"host":"a","length":100}',
        b'{"host":7,"length":100,"groups":[]}',
        b'{"host":"a","length":-1,"groups":[]}',
        b'{"host":"a","length":true,"groups":[]}',
        b'{"host":"a","length":1e3,"groups":[]}',
        b'{"host":"a","length":9999999999999999999,"groups":[]}',
        b'{"host":"a","length":100,"groups":[["%s",0,101]]}' % (b"a" * 64),
        b'{"host":"a","length":100,"groups":[["%s",-1,1]]}' % (b"a" * 64),
        b'{"host":"a","length":100,"groups":[["%s",90,20]]}' % (b"a" * 64),
        b'{"host":"a","length":100,"groups":[["%s",true,1]]}' % (b"a" * 64),
        b'{"host":"a","length":100,"groups":[["%s",0]]}' % (b"a" * 64),
        b'{"host":"a","length":100,"groups":[["x",0,1]]}',
        b'{"host":"a","length":100,"groups":[[[],0,1]]}',
        b'{"host":"a","length":100,"groups":[[null,0,1]]}',
        b'{"host":"a","length":100,"groups":7}',
        b"\xff\xfe",
    ],
)
def test_offers_that_cannot_be_are_refused(body):
    with pytest.raises(LoanRefusedError, match="offers"):
        read_offer(body)


def test_an_offer_is_read_as_it_was_written():
    assert read_offer(OFFERED.to_bytes()) == OFFERED
