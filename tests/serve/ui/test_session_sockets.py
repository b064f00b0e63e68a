"""WebSockets of people who are logged in: for pages of this server, and for nobody else's."""

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
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
    with connect(address, open_timeout=60, origin=url, additional_headers=headers) as socket:
        assert '"stats"' in socket.recv(timeout=60)
    for origin in (None, "http://127.0.0.1:1", "https://evil.example", "null"):
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(address, open_timeout=60, origin=origin, additional_headers=headers),
        ):
            pass
        assert caught.value.response.status_code == 403, origin
    for wrong in ("zse-session=x", cookie[:-1], cookie.upper()):
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(address, open_timeout=60, origin=url, additional_headers={"cookie": wrong}),
        ):
            pass
        assert caught.value.response.status_code == 401


def until_it_closes(socket):
    for _ in range(100):
        socket.recv(timeout=60)


def test_statistics_end_when_the_key_is_revoked(person):
    url, address, _ = person
    admin = {"authorization": f"Bearer {ADMIN}"}
    asked = {"name": "viewer", "scope": "metrics"}
    secret = httpx.post(f"{url}/api/keys", json=asked, headers=admin, timeout=60).json()["key"]
    viewer = {"authorization": f"Bearer {secret}"}
    with connect(f"{address}?interval=0.5", open_timeout=60, additional_headers=viewer) as socket:
        assert '"stats"' in socket.recv(timeout=60)
        assert httpx.delete(f"{url}/api/keys/viewer", headers=admin, timeout=60).is_success
        with pytest.raises(ConnectionClosed) as caught:
            until_it_closes(socket)
    assert caught.value.rcvd.code == 1008
