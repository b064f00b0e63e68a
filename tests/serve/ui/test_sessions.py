"""Logging in: one cookie for a key, and nothing that a page of another site could do with it."""

from person import HTML, Person

from zse.serve.access.sessions import (
    MAX_SESSIONS,
    MAX_SESSIONS_OF_KEY,
    SESSION_SECONDS,
    Sessions,
)


def test_a_browser_without_a_key_is_sent_to_the_login_and_back(guarded, add_key):
    answer = guarded("GET", "/dashboard", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "login?next=dashboard")
    assert 'name="next" value="dashboard"' in guarded("GET", "/login?next=dashboard").text
    assert guarded("GET", "/dashboard").status_code == 401, "a program is told"


def test_a_key_is_shown_once_and_its_cookie_is_out_of_reach_of_scripts_and_other_sites(log_in):
    boss = log_in()
    assert boss.login.status_code == 303
    assert boss.login.headers["location"] == "dashboard"
    cookie = boss.login.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in cookie.split(";")}
    assert boss.get("/dashboard").status_code == 200
    assert boss.get("/api/keys").status_code == 200


def test_over_https_the_cookie_never_goes_over_plain_http(guarded, add_key, runner):
    import httpx

    async def send():
        transport = httpx.ASGITransport(guarded.app)
        async with httpx.AsyncClient(transport=transport, base_url="https://host") as client:
            return await client.post("/login", data={"key": secret})

    secret = add_key("boss", scope="admin")
    assert "secure" in runner.run(send()).headers["set-cookie"].lower()


def test_what_is_no_key_begins_no_session(guarded, add_key):
    add_key("boss", scope="admin")
    for shown in ("", "wrong", "x" * 300, "\u00fc" * 20, "zse-\x00"):
        person = Person(guarded, shown)
        assert person.login.status_code == 401, shown
        assert "set-cookie" not in person.login.headers


def test_a_form_longer_than_any_key_is_refused(guarded):
    assert guarded("POST", "/login", content=b"key=" + b"x" * 20000).status_code == 400


def test_the_login_goes_to_pages_of_ours_only(guarded, add_key):
    secret = add_key("boss", scope="admin")
    for place in ("https://evil.example", "//evil.example", "../x", "login", "dashboard\r\nx: y"):
        answer = guarded("POST", "/login", data={"key": secret, "next": place})
        assert answer.headers["location"] == "dashboard"


def test_a_page_of_another_site_cannot_log_anybody_in(guarded, add_key):
    secret = add_key("boss", scope="admin")
    headers = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    answer = guarded("POST", "/login", data={"key": secret}, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_change_by_a_session_needs_the_token_of_its_pages(log_in, guarded, add_key):
    boss, other = log_in(), Person(guarded, add_key("other", scope="admin"))
    for path in ("/api/batching/enable", "/logout", "/v1/chat/completions"):
        for token in ("", "wrong", other.csrf):
            answer = boss.ask("POST", path, csrf=token, json={})
            assert answer.status_code == 403, path
            assert answer.json()["error"]["code"] == "csrf_token_missing"
    assert boss.ask("POST", "/api/batching/enable", json={}).status_code == 200


def test_a_session_is_over_with_its_key(log_in, key_file, state):
    boss = log_in()
    key_file.update("boss", lambda _: None)
    state.access.keyring.look()
    assert boss.get("/dashboard").status_code == 303
    assert boss.get("/api/keys").status_code == 401


def test_logging_out_ends_the_session_on_the_server(log_in):
    boss = log_in()
    answer = boss.ask("POST", "/logout")
    assert answer.status_code == 204
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    assert boss.get("/dashboard").status_code == 303


def test_a_key_for_inference_sees_the_playground_and_nothing_that_administers(log_in):
    alice = log_in("alice", scope="inference")
    assert alice.login.headers["location"] == "chat"
    page = alice.get("/docs").text
    assert 'href="dashboard"' not in page
    assert alice.get("/dashboard").headers["location"] == "login?next=dashboard"
    assert alice.get("/api/keys").status_code == 403


def test_a_key_in_a_header_counts_before_any_cookie(log_in, guarded, add_key):
    boss, secret = log_in(), add_key("alice", scope="inference")
    headers = {**boss.headers, "authorization": f"Bearer {secret}"}
    assert guarded("GET", "/api/keys", headers=headers).status_code == 403


def scope_of(token, **headers):
    pairs = [(b"cookie", f"a=b; zse-session={token}; c=d".encode())]
    pairs += [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "websocket", "headers": pairs}


def test_a_session_ends_after_half_a_day_and_the_oldest_where_there_are_too_many():
    now = [0.0]
    sessions = Sessions(now=lambda: now[0])
    first, _ = sessions.begin("0" * 16)
    now[0] = SESSION_SECONDS - 1
    assert sessions.of(scope_of(first)).key_id == "0" * 16
    now[0] = SESSION_SECONDS
    assert sessions.of(scope_of(first)) is None
    tokens = [sessions.begin(f"{number:016x}")[0] for number in range(MAX_SESSIONS + 1)]
    assert sessions.of(scope_of(tokens[0])) is None
    assert sessions.of(scope_of(tokens[1])) is not None


def test_who_logs_in_again_and_again_ends_no_session_of_another_key():
    sessions = Sessions()
    other, _ = sessions.begin("f" * 16)
    tokens = [sessions.begin("0" * 16)[0] for _ in range(MAX_SESSIONS)]
    assert sessions.of(scope_of(other)) is not None
    is_open = [sessions.of(scope_of(token)) is not None for token in tokens]
    assert is_open == [False] * (MAX_SESSIONS - MAX_SESSIONS_OF_KEY) + [True] * MAX_SESSIONS_OF_KEY


def test_a_socket_of_a_session_is_opened_by_our_own_pages_alone():
    sessions = Sessions()
    _, session = sessions.begin("0" * 16)
    assert session.forgery(scope_of("", host="h:8000", origin="http://h:8000")) is None
    for origin in ("http://h:3000", "http://evil.example", "null", ""):
        assert session.forgery(scope_of("", host="h:8000", origin=origin)) is not None
    assert session.forgery(scope_of("", host="h:8000")) is not None
