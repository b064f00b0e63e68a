"""Who may reach what administers: no key, another's scope, an admin's key; over HTTP and sockets."""

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync import client as websockets_client

KEYS = "zse-inference-key-000000000000000000,admin:zse-admin-key-00000000000000000000"
INFERENCE, ADMIN = (each.removeprefix("admin:") for each in KEYS.split(","))
ROUTES = [
    ("GET", "/api/models"),
    ("POST", "/api/models/load"),
    ("POST", "/api/models/unload"),
    ("POST", "/api/models/pin"),
    ("POST", "/api/models/swap"),
    ("GET", "/api/models/registry"),
    ("GET", "/api/models/search"),
    ("GET", "/api/models/check/tiny"),
    ("GET", "/api/batching"),
    ("POST", "/api/batching/enable"),
    ("POST", "/api/batching/disable"),
    ("GET", "/api/stats"),
    ("GET", "/api/stats/gpu"),
    ("GET", "/api/stats/models"),
    ("GET", "/api/analytics"),
    ("GET", "/api/analytics/timeseries"),
    ("GET", "/api/analytics/requests"),
]


def connect(url, **options):
    """Open a socket; the first one of a server waits until FastAPI is imported."""
    return websockets_client.connect(url, open_timeout=120, **options)


@pytest.fixture(scope="module")
def keyed(server_class, scripted):
    """A server that asks for keys."""
    child = server_class([scripted.__file__], ZSE_API_KEYS=KEYS)
    try:
        child.wait_for_line("ready")
        yield child
    finally:
        child.close()


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_only_an_admin_key_opens_what_administers(keyed, check_error, method, path):
    assert keyed.http.request(method, path).status_code == 401
    assert keyed.http.request(method, path, headers=bearer("wrong")).status_code == 401
    refused = keyed.http.request(method, path, headers=bearer(INFERENCE))
    check_error(refused, 403, code="insufficient_permissions")
    assert keyed.http.request(method, path, headers=bearer(ADMIN)).status_code in (200, 400, 404)


def test_every_route_of_the_api_is_in_this_list(keyed):
    document = keyed.http.get("/openapi.json", headers=bearer(ADMIN)).json()
    served = {
        (method.upper(), path.replace("{model_id}", "tiny"))
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith(("/api/models", "/api/batching", "/api/stats", "/api/analytics"))
    }
    assert served == set(ROUTES)


def test_a_socket_takes_its_key_from_a_header_or_a_subprotocol_and_not_from_the_address(keyed):
    url = keyed.url.replace("http://", "ws://") + "/ws/chat"
    with connect(url, additional_headers=bearer(INFERENCE)) as socket:
        socket.send('{"messages": [{"role": "user", "content": "say:x"}]}')
        assert '"start"' in socket.recv(timeout=30)
    with connect(url, subprotocols=["zse", f"zse-api-key.{INFERENCE}"]) as socket:
        assert socket.subprotocol == "zse"
    for address in (url, f"{url}?key={INFERENCE}", f"{url}?api_key={INFERENCE}"):
        with pytest.raises(InvalidStatus) as caught:
            connect(address)
        assert caught.value.response.status_code == 401


def test_statistics_over_a_socket_ask_for_their_scope(keyed):
    url = keyed.url.replace("http://", "ws://") + "/ws/stats"
    with pytest.raises(InvalidStatus) as caught:
        connect(url, additional_headers=bearer(INFERENCE))
    assert caught.value.response.status_code == 403
    with connect(url, additional_headers=bearer(ADMIN)) as socket:
        assert '"stats"' in socket.recv(timeout=30)


def test_the_document_needs_a_key_and_names_none(keyed):
    assert keyed.http.get("/openapi.json").status_code == 401
    text = keyed.http.get("/openapi.json", headers=bearer(INFERENCE)).text
    assert INFERENCE not in text
    assert ADMIN not in httpx.get(f"{keyed.url}/docs", headers=bearer(INFERENCE), timeout=60).text
