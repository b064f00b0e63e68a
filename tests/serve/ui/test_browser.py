"""The pages in a real browser: by mouse, by keyboard, on a phone, and with hostile texts in them."""

import json
from importlib.resources import files
from urllib.parse import urlsplit

import pytest

from zse.serve.access.rules import PAGES

AXE = files("axe_core_python") / "axe.min.js"
DESKTOP, PHONE = (1280, 900), (390, 800)
ADMIN, ALICE = "zse-admin-key-00000000000000000000", "zse-inference-key-000000000000000000"
PAYLOADS = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    '"><svg onload=window.hacked=1>',
    "[x](javascript:window.hacked=1) [y](data:text/html,<script>1</script>)",
    "![x](https://evil.example/beacon.png)",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "`<b onmouseover=window.hacked=1>` <a href='javascript:window.hacked=1'>z</a>",
    "```html'><script>window.hacked=1</script>\n</code><script>window.hacked=1</script>\n```",
    "| <img src=x onerror=window.hacked=1> |\n|---|\n| <script>window.hacked=1</script> |",
    "<div hx-get='/api/keys' hx-trigger='load' x-data x-init='window.hacked=1'></div>",
)


@pytest.fixture(scope="module")
def site(server_class, scripted, tmp_path_factory, chromium):
    """A server on this machine that asks for no key."""
    home = tmp_path_factory.mktemp("home")
    child = server_class([scripted.__file__], ZSE_HOME=str(home))
    try:
        child.wait_for_line("ready")
        yield child
    finally:
        child.close()


@pytest.fixture
def open_tab(chromium):
    """Open pages; in the end none of them has complained, and none has asked another host."""
    tabs = []

    def open_tab(url, size=DESKTOP):
        tabs.append((chromium.open(url, width=size[0], height=size[1]), urlsplit(url).netloc))
        return tabs[-1][0]

    yield open_tab
    for tab, host in tabs:
        asked = {urlsplit(url).netloc for url in tab.requested if not url.startswith("data:")}
        problems = tab.problems
        tab.close()
        assert asked <= {host}
        assert problems == []


def talk(site, title="talk", system="", *texts):
    """Begin a conversation with messages of both sides, by turns; returns its page."""
    root = "/api/chat/conversations"
    made = site.http.post(root, json={"title": title, "system": system}).json()["id"]
    parent = None
    for index, text in enumerate(texts):
        role = ("user", "assistant")[index % 2]
        message = {"role": role, "content": text, "parent": parent}
        parent = site.http.post(f"{root}/{made}/messages", json=message).json()["id"]
    return f"{site.url}/chat?c={made}"


def check_with_axe(tab):
    """Axe finds nothing; the long list of routes is of elements that the rest of its page has."""
    tab.ask("Runtime.evaluate", expression=AXE.read_text())
    found = tab.run(
        "axe.run({exclude: ['.reference']}, {resultTypes: ['violations']}).then(found =>"
        " JSON.stringify(found.violations.map(v => [v.id, v.nodes.map(node => node.html)])))"
    )
    assert json.loads(found) == [], tab.run("location.pathname")


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "dark"), (PHONE, "light")])
def test_axe_finds_nothing_on_any_page_and_none_is_wider_than_its_window(
    site, open_tab, size, theme
):
    code = "```python\nreturn 1  # one\n```"
    long_talk = talk(
        site, "talk", "", "Hello", f"# Title\n\n{code}\n\n> quoted\n\n| a |\n|---|\n| 1 |"
    )
    tab = open_tab(f"{site.url}/dashboard", size)
    tab.run(f"localStorage.setItem('zse-theme', '{theme}')")
    for path in sorted(PAGES):
        tab.go(long_talk if path == "/chat" else site.url + path)
        if path == "/chat":
            tab.wait_for("quoted")
        assert tab.run("document.documentElement.dataset.theme") == theme
        check_with_axe(tab)
        assert tab.run("document.documentElement.scrollWidth") <= size[0], path


def test_the_dashboard_is_live_and_says_when_the_server_is_away(
    start_command, scripted, chromium, tmp_path
):
    child = start_command(scripted.__file__, ZSE_HOME=str(tmp_path))
    child.wait_for_line("ready")
    tab = chromium.open(f"{child.url}/dashboard")
    tab.wait_for("live")
    body = {"messages": [{"role": "user", "content": "say:12345"}]}
    child.http.post("/v1/chat/completions", json=body)
    tab.wait_for("5 tokens in the last minute")
    tab.wait("document.querySelectorAll('#chart-rate canvas').length === 1")
    child.process.kill()
    tab.wait_for("the server is away")
    tab.close()


def test_a_conversation_by_keyboard_alone(site, open_tab):
    tab = open_tab(f"{site.url}/chat")
    tab.press("Tab")
    assert tab.run("document.activeElement.className") == "skip"
    tab.tab_to("#text")
    tab.type("say:**Paris**.")
    tab.press("Enter")
    tab.wait("document.querySelector('.assistant strong')?.innerText === 'Paris'")
    tab.wait_for("The answer is complete.")
    tab.run("document.querySelector('.skip').focus()")
    tab.tab_to("[aria-label^='Answer again']")
    tab.press("Enter")
    tab.wait_for("2 of 2")
    tab.wait("document.querySelector('#stop').hidden")
    tab.run("document.querySelector('.skip').focus()")
    tab.tab_to("[aria-label='The branch before']")
    tab.press("Enter")
    tab.wait_for("1 of 2")
    tab.run("document.querySelector('.skip').focus()")
    tab.tab_to("[aria-label^='Edit this message']")
    tab.press("Enter")
    tab.wait("document.activeElement.matches('.msg textarea')")
    tab.run("document.activeElement.select()")
    tab.type("say:Rome")
    tab.press("Tab")
    tab.press("Enter")
    tab.wait("document.querySelector('.assistant .text')?.innerText === 'Rome'")
    assert tab.run("document.querySelectorAll('.msg').length") == 2


def test_a_reload_in_mid_answer_loses_nothing_and_two_tabs_see_the_same(site, open_tab):
    tab = open_tab(f"{site.url}/chat")
    tab.click("#text")
    tab.type("slow:150")
    tab.press("Enter")
    tab.wait("document.querySelector('.assistant .text')?.innerText.length > 3")
    tab.go(tab.run("location.href"))
    tab.wait("document.querySelector('.assistant .text')?.innerText.length > 3")
    assert not tab.run("document.querySelector('#stop').hidden")
    tab.wait_for("The answer is complete.")
    assert tab.run("document.querySelector('.assistant .text').innerText") == "x" * 150
    second = open_tab(tab.run("location.href"))
    second.wait("document.querySelector('.assistant .text')?.innerText.length === 150")


def test_an_answer_is_stopped_where_it_is(site, open_tab):
    tab = open_tab(f"{site.url}/chat", PHONE)
    tab.click("#text")
    tab.type("slow:450")
    tab.press("Enter")
    tab.wait("document.querySelector('.assistant .text')?.innerText.length > 3")
    tab.click("#stop")
    tab.wait_for("stopped")
    assert tab.run("document.querySelector('.assistant .text').innerText.length") < 450


def test_hostile_texts_of_people_and_models_run_nothing_and_fetch_nothing(site, open_tab):
    evil = "\n\n".join(PAYLOADS)
    page = talk(site, PAYLOADS[1] + PAYLOADS[0], evil, evil, evil)
    tab = open_tab(page)
    tab.wait("document.querySelectorAll('.msg').length === 2")
    message = {
        "id": "m",
        "parent": None,
        "role": "assistant",
        "content": evil,
        "reasoning": evil,
        "calls": [{"name": PAYLOADS[1], "arguments": evil}],
        "model": evil,
        "status": "failed",
        "error": evil,
        "tokens": 1,
        "seconds": 1,
    }
    tab.run(
        "import('/ui/assets/chat/view.js').then(view => document.querySelector('#log')"
        f".append(view.show({json.dumps(message)}, [], {{}})))"
    )
    tab.wait("document.querySelectorAll('.msg').length === 3")
    tab.run(
        "document.querySelectorAll('.msg a, .msg b').forEach(one => one.dispatchEvent(new Event('mouseover')))"
    )
    tags = "script, img, iframe, svg, object, [onerror], [onload], [hx-get], [x-init]"
    assert tab.run(f"document.querySelectorAll(`main {tags.replace(', ', ', main ')}`).length") == 0
    links = tab.run("[...document.querySelectorAll('.msg a')].map(one => one.protocol)")
    assert set(links) == {"https:"}
    assert tab.run("window.hacked") is None


def test_hostile_lines_of_the_audit_log_and_names_run_nothing(site, open_tab):
    for payload in PAYLOADS[:3]:
        site.http.get("/v1/models", headers={"user-agent": payload})
        site.http.get("/v1/models/" + payload.replace(" ", "%20"))
        site.http.post("/api/models/load", json={"model": payload, "wait": False})
    tab = open_tab(f"{site.url}/requests")
    tab.wait_for("window.hacked=1")
    tab.run("document.querySelector('[name=path]').value = '/v1/models'")
    tab.click("main form button")
    tab.wait_for("onload=window.hacked")
    for path in ("/models", "/dashboard"):
        tab.go(site.url + path)
    assert tab.run("window.hacked") is None


def test_a_person_logs_in_makes_a_key_and_logs_out(start_command, scripted, open_tab, tmp_path):
    keys = f"admin:{ADMIN},{ALICE}"
    child = start_command(scripted.__file__, ZSE_HOME=str(tmp_path), ZSE_API_KEYS=keys)
    child.wait_for_line("ready")
    tab = open_tab(f"{child.url}/keys")
    tab.wait("location.pathname === '/login'")
    check_with_axe(tab)
    tab.type(ADMIN)
    tab.press("Enter")
    tab.wait("location.pathname === '/keys'")
    assert tab.run("document.cookie") == "", "no script sees the session"
    tab.click("[name=name]")
    tab.type("app")
    tab.click("main form button.main")
    tab.wait_for("The key 'app', shown this once")
    tab.go(f"{child.url}/dashboard")
    tab.wait_for("live")
    tab.click("[aria-label^='Log out']")
    tab.wait("location.pathname === '/login'")
    tab.go(f"{child.url}/chat")
    tab.wait("location.pathname === '/login'")
