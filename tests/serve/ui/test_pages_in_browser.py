"""The other pages in a real browser: every action that a person has there."""

from browser_pages import PHONE, check_with_axe

ADMIN, ALICE = "zse-admin-key-00000000000000000000", "zse-inference-key-000000000000000000"
SECRET = "document.querySelector('.made code').innerText"
LOAD = 'form[hx-post="ui/models/load"]'


def choose(tab, selector, value):
    """Choose in a list or write into a field, as a person does: its page hears of it."""
    tab.run(
        f"(() => {{ const field = document.querySelector('{selector}'); field.value = '{value}';"
        "field.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_every_page_leads_to_every_other_and_the_theme_goes_along(site, open_tab):
    tab = open_tab(f"{site.url}/dashboard")
    pages = tab.run("[...document.querySelectorAll('nav a')].map(one => one.getAttribute('href'))")
    assert len(pages) == 7
    tab.click("nav button[aria-label='Light or dark']")
    for page in pages[::-1]:
        tab.click(f"nav a[href='{page}']")
        tab.wait(f"location.pathname === '/{page}' && document.readyState === 'complete'")
        assert tab.run("document.documentElement.dataset.theme") == "light"
        assert (
            tab.run("document.querySelector('nav [aria-current=page]').getAttribute('href')")
            == page
        )
    tab.click("nav button[aria-label='Light or dark']")
    assert tab.run("localStorage.getItem('zse-theme')") == "dark"


def test_the_dashboard_shows_what_was_asked_over_an_hour_and_over_a_day(site, open_tab):
    body = {"messages": [{"role": "user", "content": "say:1"}]}
    site.http.post("/v1/chat/completions", json=body)
    tab = open_tab(f"{site.url}/dashboard")
    tab.wait_for("half of the answers took")
    tab.run("document.querySelector('#history-text').innerText = ''")
    choose(tab, "#history-minutes", "1440")
    tab.wait_for("half of the answers took")
    tab.click("a[href='models']")
    tab.wait("location.pathname === '/models'")


def test_requests_are_looked_through_by_time_key_path_status_and_with_pages(site, open_tab):
    site.http.get("/v1/models/not-here")
    tab = open_tab(f"{site.url}/requests")
    tab.wait_for("/v1/models/not-here")
    rows = "document.querySelector('#entries').innerText"
    tab.wait("document.readyState === 'complete'")
    tab.tab_to("[name=status]")
    tab.type("404")
    tab.press("Enter")
    tab.wait(f"!/ 200\\b/.test({rows})")
    assert "/v1/models/not-here" in tab.run(rows)
    choose(tab, "[name=key]", "nobody")
    tab.wait_for("None that fits what is looked for.")
    choose(tab, "[name=key]", "")
    choose(tab, "[name=status]", "")
    choose(tab, "[name=hours]", "1")
    tab.wait(f"{rows}.includes('/v1/models/not-here')")
    assert "GET /requests" not in tab.run(rows)
    tab.click("[name=pages]")
    tab.wait(f"{rows}.includes('GET /requests')")
    check_with_axe(tab)


def test_the_examples_of_the_documentation_are_copied_and_hold(site, open_tab):
    tab = open_tab(f"{site.url}/docs")
    tab.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    tab.click("[aria-label='Copy this example']")
    tab.wait("window.copied?.startsWith('curl ')")
    assert f"{site.url}/v1/chat/completions" in tab.run("window.copied")
    tab.click(".reference details summary")
    assert tab.run("document.querySelector('.reference details').open")


def test_a_file_that_cannot_be_read_is_refused_in_words_that_stay(site, open_tab, tmp_path):
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 and nothing else")
    (tmp_path / "good.txt").write_text("The lighthouse is 31 metres high.")
    tab = open_tab(f"{site.url}/documents")
    tab.choose_files("#upload [type=file]", tmp_path / "broken.pdf", tmp_path / "good.txt")
    tab.click("#upload button")
    tab.wait_for("broken.pdf: this PDF cannot be read")
    tab.wait_for("good.txt")
    tab.click("#notice button")
    assert tab.run("document.querySelector('#notice').innerText") == ""
    tab.click("[name=query]")
    tab.type("zebra")
    tab.press("Enter")
    tab.wait_for("Nothing was found.")
    tab.accept_questions()
    tab.click("[aria-label='Delete good.txt']")
    tab.wait_for("None yet")
    tab.problems.clear()  # that the server refused a file is no fault of the page


def test_a_model_is_loaded_by_its_name_picked_in_the_playground_and_unloaded(
    start_command, open_tab, tmp_path
):
    flags = ["--device", "cpu", "--threads", "1", "--max-context", "256", "--port", "0"]
    child = start_command("-m", "zse.serve", "tiny", *flags, ZSE_HOME=str(tmp_path))
    child.wait_for_line("ready")
    tab = open_tab(f"{child.url}/models")
    tab.accept_questions()
    choose(tab, f"{LOAD} [name=model]", "nobody/has-this")
    tab.click(f"{LOAD} button")
    tab.wait_for("in no place that this server may load from")
    tab.run(
        "new Promise(done => setTimeout(done, 2500))"
    )  # longer than the page takes to look again
    tab.wait_for("in no place that this server may load from")
    choose(tab, f"{LOAD} [name=model]", "tiny")
    choose(tab, f"{LOAD} [name=name]", "second")
    tab.click(f"{LOAD} button")
    tab.wait("document.querySelector('[aria-label=\"Unload second\"]:not([disabled])')")
    assert "in no place" not in tab.run("document.body.innerText")
    tab.go(f"{child.url}/chat")
    tab.click("#settings summary")
    choose(tab, "#model", "second")
    tab.click("#text")
    tab.type("Hello")
    tab.press("Enter")
    tab.wait_for("The answer is complete.")
    assert tab.run("document.querySelector('.assistant .facts').innerText").startswith("second")
    tab.go(f"{child.url}/models")
    tab.accept_questions()
    tab.click("[aria-label='Unload second']")
    tab.wait("!document.querySelector('[aria-label=\"Unload second\"]')")


def test_the_second_key_is_no_admins_unless_one_says_so_and_all_of_it_is_undone(
    start_command, scripted, open_tab, tmp_path
):
    child = start_command(scripted.__file__, ZSE_HOME=str(tmp_path))
    child.wait_for_line("ready")
    tab = open_tab(f"{child.url}/keys", PHONE)
    tab.accept_questions()
    tab.wait_for("The first one is an admin's")
    for name in ("boss", "app"):  # by keyboard alone
        tab.run("document.querySelector('.skip').focus()")
        tab.tab_to("[name=name]")
        tab.type(name)
        tab.press("Enter")
        tab.wait_for(f"The key '{name}', shown this once")
    secret = tab.run(SECRET)
    tab.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    tab.click("[aria-label='Copy the key app']")
    tab.wait(f"window.copied === {SECRET}")
    bearer = {"authorization": f"Bearer {secret}"}
    assert child.http.get("/v1/models", headers=bearer).status_code == 200
    assert child.http.get("/api/keys", headers=bearer).status_code == 403
    for act, status in (("Disable", 401), ("Enable", 200)):
        tab.click(f"[aria-label='{act} app']")
        tab.wait(f"!document.querySelector('[aria-label=\"{act} app\"]')")
        assert child.http.get("/v1/models", headers=bearer).status_code == status
    for words, state in (("for none", "are asked for no key"), ("everybody", "asks for keys")):
        tab.run(
            f"[...document.querySelectorAll('button')].find(b => b.innerText.includes('{words}')).click()"
        )
        tab.wait_for(state)
    assert child.http.get("/v1/models").status_code == 401
    assert tab.run("document.documentElement.scrollWidth") <= PHONE[0]


def test_a_wrong_key_is_told_and_a_key_for_inference_opens_the_playground_alone(
    start_command, scripted, open_tab, tmp_path
):
    keys = f"admin:{ADMIN},{ALICE}"
    child = start_command(scripted.__file__, ZSE_HOME=str(tmp_path), ZSE_API_KEYS=keys)
    child.wait_for_line("ready")
    tab = open_tab(f"{child.url}/chat")
    tab.type("zse-this-is-no-key")
    tab.press("Enter")
    tab.wait_for("This key lets nobody in.")
    tab.type(ALICE)
    tab.press("Enter")
    tab.wait("location.pathname === '/chat' && document.readyState === 'complete'")
    tab.click("#text")
    tab.type("say:welcome")
    tab.press("Enter")
    tab.wait("document.querySelector('.assistant .text')?.innerText === 'welcome'")
    tab.go(f"{child.url}/keys")
    tab.wait_for("does not open this page; an admin's does")
    tab.click("a[href=chat]")
    tab.wait("location.pathname === '/chat'")
    tab.problems.clear()  # what was refused stands among them
