"""Connections whose first head is awaited: one that has come is read, however late that is."""

import socket
import threading

from zse.serve.pending_connections import PendingConnections


def test_a_head_that_came_in_time_is_handed_on_by_a_thread_that_reads_it_too_late():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        speaks, is_silent = (socket.create_connection(listener.getsockname()) for _ in range(2))
        speaks.sendall(b"GET / HTTP/1.1\r\n\r\n")
        heard, is_heard = [], threading.Event()

        def hand_on(connection, head):
            heard.append((connection, head))
            is_heard.set()

        pending = PendingConnections(listener, hand_on, seconds=lambda: 0.0)
        thread = threading.Thread(target=pending.run)
        thread.start()
        assert is_heard.wait(60)
        is_silent.settimeout(60)
        assert is_silent.recv(1) == b""
        pending.close()
        thread.join()
    [(connection, head)] = heard
    assert head == "GET / HTTP/1.1"
    for one in (connection, speaks, is_silent):
        one.close()
