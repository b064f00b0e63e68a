"""WebSockets of people who are logged in: for pages of this server, and for nobody else's."""

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

ADMIN = "zse-admin-key-00000000000000000000"


@pytest.fixture
def person(start_command, scripted, tmp_path):
    """A server that asks for keys, the address of its statistics, and a session's cookie."""
    home, keys = str(tmp_path), f"admin:{ADMIN}"
    child = start_command(scripted.__file__, ZSE_HOME=home, ZSE_API_KEYS=keys)
    child.wait_for_line("ready")
    answer = httpx.post(f"{child.url}/login", data={"key": ADMIN}, timeout=60)
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return child.url, child.url.replace("http", "ws") + "/ws/stats", cookie


def test_a_session_s_socket_is_for_pages_of_the_same_host_and_port(person):
    url, address, cookie = person
    headers = {"cookie": cookie}
    with connect(address, origin=url, additional_headers=headers) as socket:
        assert '"stats"' in socket.recv(timeout=30)
    for origin in (None, "http://127.0.0.1:1", "https://evil.example", "null"):
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(address, origin=origin, additional_headers=headers),
        ):
            pass
        assert caught.value.response.status_code == 403, origin
    for wrong in ("zse-session=x", cookie[:-1], cookie.upper()):
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(address, origin=url, additional_headers={"cookie": wrong}),
        ):
            pass
        assert caught.value.response.status_code == 401
