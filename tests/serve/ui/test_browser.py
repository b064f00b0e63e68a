"""The pages in a real browser: by mouse, by keyboard, on a phone, and with hostile texts in them."""

import json

import pytest
from browser_pages import DESKTOP, PHONE, check_with_axe, talk
from bytes_model import write_checkpoint

from zse.format import convert_model
from zse.serve.access.rules import PAGES

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


@pytest.mark.parametrize(
    ("size", "theme"),
    [
        (DESKTOP, "dark"),
        (PHONE, "light"),
        pytest.param(DESKTOP, "light", marks=pytest.mark.nightly),
        pytest.param(PHONE, "dark", marks=pytest.mark.nightly),
    ],
)
def test_axe_finds_nothing_on_any_page_and_none_is_wider_than_its_window(
    site, open_tab, size, theme
):
    code = "```python\nreturn 1  # one\n```"
    long_talk = talk(
        site, "talk", "", "Hello", f"# Title\n\n{code}\n\n> quoted\n\n| a |\n|---|\n| 1 |"
    )
    tab = open_tab(f"{site.url}/dashboard", size)
    tab.run(f"localStorage.setItem('zse-theme', '{theme}')")
    for path in ["/", *sorted(PAGES)]:
        tab.go(long_talk if path == "/chat" else site.url + path)
        if path == "/":  # without scripts of its own, in the browser's colours
            check_with_axe(tab)
            continue
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
    shown_as = tab.run("getComputedStyle(document.querySelector('tbody#models')).display")
    assert shown_as == "table-row-group", "cells stand below their headings"
    tab.wait("document.querySelectorAll('#chart-rate canvas').length === 1")
    child.process.kill()
    tab.wait_for("the server is away")
    child.process.wait()
    start_command(scripted.__file__, "--port", str(child.port), ZSE_HOME=str(tmp_path))
    tab.wait("document.body.innerText.includes('live')")
    assert "the server is away" not in tab.run("document.body.innerText")
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


def test_the_servers_tools_are_switched_on_by_keyboard_and_what_they_did_is_shown(site, open_tab):
    evil = "say:<img src=x onerror=window.hacked=1> end"
    given = json.dumps({"operation": "reverse", "text": evil[::-1]})
    tab = open_tab(f"{site.url}/chat", PHONE)
    tab.tab_to("#server-tools")
    tab.press(" ")
    tab.tab_to("#text")
    tab.type(f'say:<tool_call>{{"name": "string_ops", "arguments": {given}}}</tool_call>')
    tab.press("Enter")
    tab.wait_for("The answer is complete.")
    tab.wait("document.querySelector('.assistant .text').innerText.endsWith(' end')")
    tab.click(".assistant details summary")
    tab.wait_for("say:<img src=x")
    assert tab.run("document.querySelector('.assistant summary').innerText") == "Tool 1: string_ops"
    check_with_axe(tab)
    tab.go(tab.run("location.href"))
    tab.wait_for("Tool 1: string_ops")
    assert tab.run("document.querySelector('#server-tools').checked"), "kept with the conversation"
    assert tab.run("window.hacked") is None


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
        "sources": [
            {"number": 1, "name": evil, "page": 1, "heading": PAYLOADS[0], "text": evil},
        ],
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


def test_a_page_of_another_origin_does_nothing_in_the_name_of_who_is_logged_in(
    start_command, scripted, chromium, foreign_page, tmp_path
):
    keys = f"admin:{ADMIN},{ALICE}"
    child = start_command(scripted.__file__, ZSE_HOME=str(tmp_path), ZSE_API_KEYS=keys)
    child.wait_for_line("ready")
    tab = chromium.open(f"{child.url}/login")
    tab.type(ADMIN)
    tab.press("Enter")
    tab.wait("location.pathname !== '/login'")
    listen = (
        f"new Promise(done => {{const heard = new WebSocket('ws://127.0.0.1:{child.port}/ws/stats');"
        " heard.onmessage = () => done('heard'); heard.onerror = () => done('refused')})"
    )
    assert tab.run(listen) == "heard"
    tab.go(foreign_page)  # of the same host, so that the browser sends its cookies along
    assert tab.run(listen) == "refused"
    for path, body in (("/api/keys", {"name": "forged"}), ("/sleep", {}), ("/login", {})):
        sent = f"{{method: 'POST', credentials: 'include', mode: 'no-cors', body: '{json.dumps(body)}'}}"
        assert tab.run(f"fetch('{child.url}{path}', {sent}).then(() => 'sent')") == "sent"
    tab.close()
    bearer = {"authorization": f"Bearer {ADMIN}"}
    assert "forged" not in child.http.get("/api/keys", headers=bearer).text
    assert child.http.get("/is_sleeping", headers=bearer).json() == {"is_sleeping": False}


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


def test_a_file_is_added_found_asked_about_and_deleted(site, open_tab, tmp_path):
    file = tmp_path / "leave <img src=x onerror=window.hacked=1>.md"
    file.write_text(f"# Leave\n\nEverybody has 31 days of holiday. {PAYLOADS[0]}")
    tab = open_tab(f"{site.url}/documents")
    tab.choose_files("#upload [type=file]", file)
    tab.click("#upload button")
    tab.wait_for("Kept: 1, in 1 chunk")
    tab.click("[name=query]")
    tab.type("how many days of holiday?")
    tab.press("Enter")
    tab.wait_for("Everybody has 31 days")
    check_with_axe(tab)
    tab.go(f"{site.url}/chat")
    tab.click("#documents")
    tab.click("#text")
    tab.type("say:31 days [1]. What of holiday?")
    tab.press("Enter")
    tab.wait_for("The answer is complete.")
    tab.wait_for("1 source")
    tab.click(".sources summary")
    tab.wait_for("Everybody has 31 days")
    check_with_axe(tab)
    tab.go(tab.run("location.href"))
    tab.wait_for("1 source")
    assert tab.run("document.querySelector('#documents').checked"), "it goes with the conversation"
    assert tab.run("window.hacked") is None
    tab.go(f"{site.url}/documents")
    tab.accept_questions()
    tab.click("[aria-label^='Delete']")
    tab.wait_for("Kept: 0")


def test_models_are_brought_pinned_put_to_sleep_woken_and_unloaded(
    server_class, open_tab, tmp_path
):
    for name in ("alpha", "beta"):
        (tmp_path / name).mkdir()
        write_checkpoint(tmp_path / name, 1)
        convert_model(tmp_path / name, tmp_path / f"{name}.zse", quantization="bf16")
    flags = ["--models", str(tmp_path), "--max-resident", "2", "--max-context", "256"]
    flags += ["--device", "cpu", "--threads", "1", "--port", "0"]
    command = ["-m", "zse.serve", *flags]
    child = server_class(command, ZSE_HOME=str(tmp_path / "home"))
    try:
        child.wait_for_line("ready")
        tab = open_tab(f"{child.url}/models")
        tab.accept_questions()
        tab.click("[aria-label='Bring beta']")
        tab.wait("document.querySelector('[aria-label=\"Unload beta\"]')")
        tab.click("[aria-label='Pin alpha']")
        tab.wait_for("loaded, pinned")
        check_with_axe(tab)
        tab.go(f"{child.url}/dashboard")
        tab.wait_for("loaded, pinned")
        check_with_axe(tab)
        tab.go(f"{child.url}/models")
        tab.accept_questions()
        tab.click("[aria-label='Unpin alpha']")
        tab.wait("document.querySelector('[aria-label=\"Pin alpha\"]')")
        tab.click("[aria-label='Unload beta']")
        tab.wait("!document.querySelector('[aria-label=\"Unload beta\"]')")
        tab.run(
            "[...document.querySelectorAll('button')].find(b => b.innerText === 'Sleep').click()"
        )
        tab.wait_for("Asleep (level 1).")
        tab.run(
            "[...document.querySelectorAll('button')].find(b => b.innerText === 'Wake up').click()"
        )
        tab.wait("document.querySelector('[aria-label=\"Unload alpha\"]')")
    finally:
        child.close()


def test_asking_for_keys_is_switched_on_and_off_and_nobody_is_locked_out(
    start_command, scripted, open_tab, tmp_path
):
    child = start_command(scripted.__file__, ZSE_HOME=str(tmp_path))
    child.wait_for_line("ready")
    tab = open_tab(f"{child.url}/keys")
    tab.accept_questions()
    tab.click("[name=name]")
    tab.type("boss")
    tab.click("main form button.main")
    tab.wait_for("The key 'boss', shown this once")
    tab.wait_for("This server asks for keys.")
    tab.click("[name=name]")
    tab.type("app")
    tab.run("document.querySelector('[name=scope]').value = 'inference'")
    tab.click("main form button.main")
    tab.wait_for("The key 'app', shown this once")
    tab.click("[aria-label='Disable boss']")
    tab.wait_for("no key would be left that administers")
    tab.click("[aria-label='Disable app']")
    tab.wait("document.querySelector('[aria-label=\"Enable app\"]')")
    tab.run("document.querySelector('[value=app] ~ label [name=rate_limit]').value = '7'")
    tab.click("[aria-label='Limit app']")
    tab.wait("document.querySelector('[value=app] ~ label [name=rate_limit][value=\"7\"]')")
    tab.click("[aria-label='Revoke app']")
    tab.wait("!document.querySelector('[aria-label=\"Limit app\"]')")
    off = "[...document.querySelectorAll('button')].find(b => /for none/.test(b.innerText)).click()"
    tab.run(off)
    tab.wait_for("Programs on this machine are asked for no key.")
    check_with_axe(tab)
