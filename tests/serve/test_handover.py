import asyncio
import socket
import threading

import pytest

from zse.errors import UsageError
from zse.serve.handover import Offer, take_over


@pytest.fixture
def listener():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "handover")


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def test_the_socket_itself_is_handed_over_with_the_connections_that_wait_in_it(listener, path):
    async def main():
        relieved = threading.Event()
        offer = Offer(path, listener, on_relieved=relieved.set)
        offer.open()
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"before")
            predecessor = await asyncio.to_thread(take_over, path)
            predecessor._connection.close()
            offer.close()
            listener.close()
            assert not relieved.is_set()
            connection, _ = predecessor.listener.accept()
            with connection, predecessor.listener:
                assert connection.recv(100) == b"before"

    asyncio.run(main())


def test_a_successor_that_is_ready_relieves_and_one_that_ends_before_does_not(listener, path):
    async def main():
        num_relieved = []
        offer = Offer(path, listener, on_relieved=lambda: num_relieved.append(1))
        offer.open()
        fails = await asyncio.to_thread(take_over, path)
        fails.listener.close()
        fails._connection.close()
        works = await asyncio.to_thread(take_over, path)
        assert num_relieved == []
        works.relieve()
        await until(lambda: num_relieved)
        works.listener.close()
        offer.close()
        return num_relieved

    assert asyncio.run(main()) == [1]


def test_where_nobody_offers_a_socket_there_is_no_predecessor(listener, path):
    assert take_over(path) is None

    async def main():
        offer = Offer(path, listener, on_relieved=list)
        offer.open()
        offer._socket.close()  # as a process that was killed

    asyncio.run(main())
    assert take_over(path) is None


def test_the_offer_is_for_its_own_user_and_goes_with_its_server(listener, tmp_path, path):
    async def main():
        offer = Offer(path, listener, on_relieved=list)
        offer.open()
        (entry,) = tmp_path.iterdir()
        assert entry.stat().st_mode & 0o777 == 0o600
        later = Offer(path, listener, on_relieved=list)
        later.open()
        offer.close()
        assert list(tmp_path.iterdir()) == [entry]  # the successor's
        later.close()

    asyncio.run(main())
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_used_is_refused_with_what_to_do(listener, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="handed over"):
        take_over(str(tmp_path / "file" / "handover"))

    async def main():
        Offer(str(tmp_path / "absent" / "x"), listener, on_relieved=list).open()

    with pytest.raises(UsageError) as caught:
        asyncio.run(main())
    assert "--handover" in caught.value.hint


def test_something_else_at_the_path_is_no_predecessor(path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()

        def hang_up():
            connection, _ = other.accept()
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(UsageError, match="no server answers"):
            take_over(path)
        thread.join()
