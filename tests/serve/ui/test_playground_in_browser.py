"""The playground in a real browser: whatever a person can do to a conversation."""

import json
import time

import httpx
import pytest
from browser_pages import PHONE, check_with_axe, talk

ROOT = "/api/chat/conversations"
FORMS = ("json", "markdown")
LINE = "document.querySelector('#list').innerText"
ANSWER = "document.querySelector('.assistant:last-child .text')?.innerText"
COPIED = "window.copied = ''; navigator.clipboard.writeText = async (text) => { copied = text; }"
WITHOUT_CLIPBOARD = (
    "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
    "document.execCommand = () => { window.copied = document.activeElement.value; return true; }"
)


def ask(tab, text):
    """Write a message and send it; returns when the answer is there."""
    tab.wait("!document.querySelector('#send').disabled")
    before = tab.run("document.querySelectorAll('.assistant').length")
    tab.click("#text")
    tab.type(text)
    tab.press("Enter")
    tab.wait(f"document.querySelectorAll('.assistant').length > {before}")
    tab.wait("!document.querySelector('#send').disabled")


def set_field(tab, selector, value):
    """Change a field as a person does: its page hears of it."""
    tab.run(
        f"(() => {{ const field = document.querySelector({json.dumps(selector)});"
        f"field.value = {json.dumps(value)};"
        "for (const name of ['input', 'change'])"
        " field.dispatchEvent(new Event(name, {bubbles: true})); })()"
    )


def conversation_of(site, tab, is_awaited=lambda _: True):
    """Return what the server has of the conversation that a tab shows, when it is as awaited."""
    identifier = tab.run("new URLSearchParams(location.search).get('c')")
    deadline = time.monotonic() + 30
    while not is_awaited(kept := site.http.get(f"{ROOT}/{identifier}").json()):
        assert time.monotonic() < deadline, kept
        time.sleep(0.03)
    return kept


def test_conversations_are_begun_named_searched_and_deleted(site, open_tab):
    talk(site, "about rivers", "", "the Danube")
    tab = open_tab(f"{site.url}/chat")
    ask(tab, "say:one")
    tab.click("#new")
    tab.wait("document.querySelectorAll('.msg').length === 0")
    assert tab.run("document.activeElement.id") == "text"
    ask(tab, "say:two")
    assert tab.run(f"{LINE}.includes('say:one') && {LINE}.includes('say:two')")
    tab.click("#rename")
    tab.wait("document.activeElement.matches('h1 input')")
    tab.run("document.activeElement.select()")
    tab.type("<i>mountains</i>")
    tab.press("Enter")
    tab.wait(f"{LINE}.includes('<i>mountains</i>')")
    assert conversation_of(site, tab)["title"] == "<i>mountains</i>"
    tab.click("#search")
    tab.type("danube")
    tab.wait(f"{LINE} === 'about rivers'")
    tab.type(" and nothing else")
    tab.wait_for("None has these words.")
    assert tab.run(LINE) == ""
    tab.run("document.querySelector('#search').select()")
    tab.press("Backspace")
    tab.wait(f"{LINE}.includes('mountains')")
    tab.click("#delete")
    tab.wait_for("Delete for good?")
    tab.click("#delete")
    tab.wait(f"!{LINE}.includes('mountains')")
    assert tab.run("location.search") == ""


def test_settings_reach_the_model_and_come_back_with_their_conversation(site, open_tab):
    tab = open_tab(f"{site.url}/chat")
    tab.click("#settings summary")
    set_field(tab, "#system", "say:as the system says")
    set_field(tab, "#max_tokens", "6")
    set_field(tab, "#model", "scripted")
    set_field(tab, "#temperature", "0.7")
    set_field(tab, "#top_p", "0.9")
    assert tab.run("document.querySelector('#temperature-text').innerText") == "0.7"
    ask(tab, "Hello")
    assert tab.run(ANSWER) == "as the", "six tokens of what the system prompt says"
    assert tab.run("document.querySelector('.assistant .facts').innerText").startswith("scripted")
    set_field(tab, "#max_tokens", "")
    set_field(tab, "#system", "Be brief.")
    kept = conversation_of(site, tab, lambda one: one["system"] == "Be brief.")
    wanted = {"model": "scripted", "temperature": 0.7, "top_p": 0.9, "max_tokens": None}
    assert {name: kept["settings"].get(name) for name in wanted} == wanted
    tab.go(tab.run("location.href"))
    tab.wait("document.querySelector('#system').value === 'Be brief.'")
    assert tab.run("document.querySelector('#model').value") == "scripted"


def test_tools_of_ones_own_are_offered_and_a_call_is_shown_folded(site, open_tab):
    tab = open_tab(f"{site.url}/chat")
    tab.click("#settings summary")
    set_field(tab, "#tools", "[{")
    ask_nothing = "document.querySelectorAll('.msg').length === 0"
    tab.click("#text")
    tab.type("say:hello")
    tab.press("Enter")
    tab.wait_for("The tools are not JSON")
    assert tab.run(ask_nothing)
    assert tab.run("document.querySelector('#text').value") == "say:hello", "nothing is lost"
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    set_field(tab, "#tools", json.dumps([{"type": "function", "function": function}]))
    tab.run("document.querySelector('#text').value = ''")
    ask(tab, 'say:<tool_call>{"name": "look", "arguments": {}}</tool_call>')
    tab.wait("document.querySelector('.assistant summary')?.innerText === 'Call 1: look'")
    assert not tab.run("document.querySelector('.assistant details').open")


def test_an_answer_that_fails_says_why_and_is_asked_for_again(site, open_tab):
    tab = open_tab(f"{site.url}/chat")
    ask(tab, "break:3")
    tab.wait("document.querySelector('.assistant .bad')")
    assert "/opt/secret" not in tab.run("document.body.innerText")
    tab.wait_for("failed")
    tab.click("[aria-label^='Answer again']")
    tab.wait_for("2 of 2")
    tab.wait("document.querySelector('#stop').hidden")


@pytest.mark.parametrize("clipboard", [COPIED, WITHOUT_CLIPBOARD], ids=["https", "plain-http"])
def test_messages_and_code_are_copied(site, open_tab, clipboard):
    page = talk(site, "t", "", "Write one.", "Here:\n\n```python\nreturn 1\n```\n")
    tab = open_tab(page)
    tab.wait("document.querySelector('.code button')")
    tab.run(clipboard)
    tab.click(".user [aria-label='Copy this message']")
    tab.wait("window.copied === 'Write one.'")
    tab.click(".code button")
    tab.wait("window.copied === 'return 1'")
    tab.wait("document.querySelector('.code button').innerText === 'Copied'")


def test_a_conversation_is_exported_as_json_and_as_markdown(site, open_tab):
    tab = open_tab(talk(site, "rivers", "Be brief.", "Which?", "The **Danube**."))
    tab.wait("document.querySelector('#export-json').href")
    links = [tab.run(f"document.querySelector('#export-{form}').href") for form in FORMS]
    as_json, as_markdown = (httpx.get(link, timeout=60) for link in links)
    assert all(
        "attachment" in answer.headers["content-disposition"] for answer in (as_json, as_markdown)
    )
    assert [one["content"] for one in as_json.json()["messages"]] == ["Which?", "The **Danube**."]
    assert "# rivers" in as_markdown.text
    assert "The **Danube**." in as_markdown.text


def test_what_one_tab_asks_another_finds(site, open_tab):
    first = open_tab(f"{site.url}/chat")
    ask(first, "say:shared")
    second = open_tab(first.run("location.href"))
    second.wait(f"{ANSWER} === 'shared'")
    ask(second, "say:more")
    first.go(first.run("location.href"))
    first.wait(f"{ANSWER} === 'more'")


def test_a_text_from_right_to_left_is_set_so_and_a_long_talk_opens_at_its_end(site, open_tab):
    texts = ["مرحبا، كيف حالك؟", "أنا بخير."] * 15
    tab = open_tab(talk(site, "مرحبا", "", *texts), PHONE)
    tab.wait("document.querySelectorAll('.msg').length === 30")
    shown = "getComputedStyle(document.querySelector('.msg .text')).direction"
    assert tab.run(shown) == "rtl"
    tab.wait("scrollY + innerHeight > document.documentElement.scrollHeight - 4")
    last = "document.querySelector('.msg:last-child').getBoundingClientRect().bottom"
    assert tab.run(f"{last} <= document.querySelector('#ask').getBoundingClientRect().top")
    check_with_axe(tab)


def test_a_hundred_conversations_and_long_names_stay_within_their_places(site, open_tab):
    for index in range(100):
        title = f"{index} {'Donaudampfschifffahrt' * 5}"
        site.http.post(ROOT, json={"title": title[:60]})
    tab = open_tab(f"{site.url}/chat", (640, 450))  # a window of 1280 by 900 at 200%
    tab.click("#shelf summary")
    tab.wait("document.querySelectorAll('#list li').length >= 100")
    assert tab.run("document.documentElement.scrollWidth") <= 640
    tab.click("#list button")
    tab.wait("!document.querySelector('#shelf').open")
    tab.resize(1280, 900)
    assert tab.run("document.querySelector('#ask').getBoundingClientRect().bottom <= 900")
