"""Whom the server answers: names, origins, proxies, a path before ours, files of certificates."""

import pytest

from zse.errors import UsageError
from zse.serve.http.cors import CrossOrigin
from zse.serve.http.hosts import LOOPBACK_HOSTS
from zse.serve.http.proxies import TrustedProxies
from zse.serve.http.rules import rules_of
from zse.serve.http.shell import in_shell
from zse.server_options import HTTPOptions

APP = "https://app.example.com"


def rules(bound="127.0.0.1", **options):
    return rules_of(HTTPOptions(**options), bound=bound)


@pytest.fixture
def ask(make_caller):
    """Ask a server with some options."""

    def ask(method="GET", path="/v1/models", headers=(), **options):
        call = make_caller(rules=rules(**options))
        return call(method, path, headers=dict(headers))

    return ask


# --- names ----------------------------------------------------------------------------------------


def test_loopback_answers_its_own_names_and_those_that_are_allowed():
    assert rules().hosts == LOOPBACK_HOSTS
    assert rules(allowed_hosts=("My.Host",)).hosts == LOOPBACK_HOSTS | {"my.host"}
    assert rules("::1", allowed_hosts=("*",)).hosts is None


def test_other_addresses_answer_any_name_unless_one_is_given():
    assert rules("0.0.0.0").hosts is None
    assert rules("10.0.0.5", allowed_hosts=("a",)).hosts == LOOPBACK_HOSTS | {"10.0.0.5", "a"}


def test_a_name_that_is_not_answered_is_told_how(ask, check_error):
    options = {"allowed_hosts": ("llm.example.com",)}
    assert ask(headers={"host": "llm.example.com:443"}, **options).status_code == 200
    refused = ask(headers={"host": "evil.example"}, **options)
    message = check_error(refused, 421, code="misdirected_request")
    assert "use llm.example.com, or allow it with --allowed-host" in message


# --- pages of other origins -----------------------------------------------------------------------


def test_by_default_no_page_of_another_origin_reads_an_answer(ask):
    answer = ask(headers={"origin": APP})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    preflight = ask("OPTIONS", headers={"origin": APP, "access-control-request-method": "POST"})
    assert preflight.status_code == 405


def test_a_page_of_an_allowed_origin_may(ask):
    answer = ask(headers={"origin": APP}, cors_origins=(APP,))
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["vary"] == "origin"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    other = ask(headers={"origin": APP + ".evil.example"}, cors_origins=(APP,))
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("allowed", [APP, "*"])
def test_a_preflight_is_answered_without_a_key_and_never_allows_cookies(ask, allowed):
    asked = {
        "origin": APP,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    answer = ask("OPTIONS", "/v1/chat/completions", headers=asked, cors_origins=(allowed,))
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == allowed
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


def test_refusals_can_be_read_by_the_page_that_is_allowed(ask):
    answer = ask("GET", "/v1/nothing", headers={"origin": APP}, cors_origins=(APP,))
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (404, APP)


def test_what_a_preflight_asks_for_is_not_repeated_when_it_is_no_list_of_names(runner):
    sent = []

    async def send(message):
        sent.append(message)

    asked = [(b"origin", APP.encode()), (b"access-control-request-method", b"POST")]
    asked.append((b"access-control-request-headers", b"a\r\nset-cookie: b"))
    scope = {"type": "http", "method": "OPTIONS", "headers": asked}
    runner.run(CrossOrigin(None, origins=frozenset({APP}))(scope, None, send))
    assert dict(sent[0]["headers"])[b"access-control-allow-headers"] == b""


@pytest.mark.parametrize(
    "options",
    [
        {"cors_origins": ("app.example.com",)},
        {"cors_origins": ("https://app.example.com/path",)},
        {"cors_origins": ("null",)},
        {"trusted_proxies": ("proxy.local",)},
        {"trusted_proxies": ("10.0.0.1/8",)},
        {"root_path": "llm"},
        {"ssl_certfile": "/no/such/file.pem"},
        {"ssl_keyfile": "key.pem"},
    ],
)
def test_an_option_that_means_nothing_is_an_error_at_the_start(options):
    with pytest.raises(UsageError):
        rules(**options)


# --- proxies --------------------------------------------------------------------------------------


@pytest.fixture
def client_of(runner):
    """Return address and scheme that a request comes with, as the application sees them."""

    def client_of(peer, *headers, trusted=("10.0.0.0/8", "::1"), kind="http"):
        async def app(scope, receive, send):
            seen.append((scope["client"][0], scope["scheme"]))

        seen = []
        wrapped = TrustedProxies(app, networks=rules(trusted_proxies=trusted).proxies)
        scheme = "http" if kind == "http" else "ws"
        scope = {"type": kind, "client": (peer, 1), "scheme": scheme, "headers": list(headers)}
        runner.run(wrapped(scope, None, None))
        return seen[0]

    return client_of


def forwarded(text):
    return b"x-forwarded-for", text.encode()


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),  # nobody whom we trust
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.1", "198.51.100.1"),  # the first is the client's claim
        ("10.0.0.1", "198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "198.51.100.1:4711", "198.51.100.1"),
        ("10.0.0.1", "[2001:db8::1]:80", "2001:db8::1"),
        ("::1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1, <script>", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
    ],
)
def test_the_client_is_the_last_whom_a_trusted_proxy_saw(client_of, peer, said, client):
    assert client_of(peer, forwarded(said))[0] == client


def test_headers_that_come_several_times_are_one_list(client_of):
    said = (forwarded("6.6.6.6"), forwarded("198.51.100.1"))
    assert client_of("10.0.0.1", *said)[0] == "198.51.100.1"


@pytest.mark.parametrize(("kind", "scheme"), [("http", "https"), ("websocket", "wss")])
def test_a_trusted_proxy_says_whether_the_client_came_by_tls(client_of, kind, scheme):
    header = (b"x-forwarded-proto", b"https")
    assert client_of("10.0.0.1", header, kind=kind)[1] == scheme
    assert client_of("203.0.113.9", header, kind=kind)[1] != scheme
    assert client_of("10.0.0.1", (b"x-forwarded-proto", b"gopher"), kind=kind)[1] != scheme


def test_a_route_finds_the_address_in_the_state(state, runner):
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["state"]["client_address"])

    shell = in_shell(app, state=state, rules=rules(trusted_proxies=("*",)))
    scope = {"type": "http", "method": "GET", "path": "/health", "headers": [forwarded("1.2.3.4")]}
    scope |= {"client": ("9.9.9.9", 1), "scheme": "http"}
    scope["headers"].append((b"host", b"localhost"))
    runner.run(shell(scope, None, None))
    assert seen == ["1.2.3.4"]


# --- a path before ours ---------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["/llm", "/llm/", "/a/b"])
def test_routes_are_found_with_the_root_path_and_without(ask, root):
    for path in ("/v1/models", "/health/live", "/"):
        assert ask(path=root.rstrip("/") + path, root_path=root).status_code == 200
        assert ask(path=path, root_path=root).status_code == 200
    assert ask(path="/llmx/v1/models", root_path=root).status_code == 404
