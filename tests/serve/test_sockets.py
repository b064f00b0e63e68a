"""A server that cannot listen says what to change: the port, or the address."""

import socket

import pytest

from zse.errors import UsageError
from zse.serve.sockets import bind_socket


def test_an_address_of_another_machine_is_told_from_a_port_that_is_taken():
    with pytest.raises(UsageError) as told:
        bind_socket("192.0.2.1", 0)
    assert "--host" in told.value.hint
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(UsageError) as told:
        bind_socket("127.0.0.1", other.getsockname()[1])
    assert "--port" in told.value.hint
