"""Connections in a lobby: who has spoken is heard, however late the lobby comes to listen."""

import socket
import threading

from zse.serve.lobby import Lobby


def test_who_has_spoken_in_time_is_heard_by_a_lobby_that_comes_to_listen_too_late():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        speaks, is_silent = (socket.create_connection(listener.getsockname()) for _ in range(2))
        speaks.sendall(b"GET / HTTP/1.1\r\n\r\n")
        heard, is_heard = [], threading.Event()

        def hand_on(connection, head):
            heard.append((connection, head))
            is_heard.set()

        lobby = Lobby(listener, hand_on, seconds=lambda: 0.0)
        thread = threading.Thread(target=lobby.run)
        thread.start()
        assert is_heard.wait(60)
        is_silent.settimeout(60)
        assert is_silent.recv(1) == b""
        lobby.close()
        thread.join()
    [(connection, head)] = heard
    assert head == "GET / HTTP/1.1"
    for one in (connection, speaks, is_silent):
        one.close()
