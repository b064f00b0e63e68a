"""Pages: nothing in them runs that is not a file of ours, and every value is text."""

import html.parser
import subprocess
import sys
from dataclasses import replace

from person import HTML

from zse.serve.access.rules import PAGES
from zse.serve.ledger import Ledger
from zse.serve.ui.dashboard import WIDTH, waterfall
from zse.settings import subprocess_environment

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Tags(html.parser.HTMLParser):
    """The tags of a page."""

    def __init__(self, text) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def check(response):
    """A page has no script or style but files of ours; its policy would keep others out."""
    assert response.status_code == 200, response.text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert response.headers["cache-control"] == "no-store"
    tags = Tags(response.text).found
    for tag, attributes in tags:
        assert tag not in ("style", "iframe", "object", "embed", "base")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        if tag == "script":
            assert attributes["src"].startswith("ui/assets/")
    return tags


def test_pages_run_files_of_ours_only_and_all_of_them_are_there(call):
    places = set()
    for path in sorted(PAGES):
        tags = check(call("GET", path, headers=HTML))
        files = (a.get("src") or a.get("href", "") for tag, a in tags if tag in ("script", "link"))
        places |= set(files)
    assert {"ui/assets/chat/main.js", "ui/assets/dashboard/main.js"} <= places
    for place in places:
        assert call("GET", f"/{place}").status_code == 200, place


def test_pages_link_to_each_other_by_relative_addresses(call):
    tags = check(call("GET", "/dashboard", headers=HTML))
    places = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert "docs" in places
    assert not [place for place in places if place.startswith("/") or "://" in place]


def test_the_name_of_a_model_is_text_and_no_markup(make_caller, scripted):
    call = make_caller(scripted.scripted_model(name=EVIL))
    for path in sorted(PAGES):
        response = call("GET", path, headers=HTML)
        assert "<script>alert" not in response.text
        assert "<img" not in response.text
        check(response)


def test_without_a_ui_there_are_no_pages_and_the_documents_page_stays(state, make_caller):
    state.options = replace(state.options, ui=False)
    call = make_caller()
    for path in ("/dashboard", "/login", "/ui/assets/base.css"):
        assert call("GET", path, headers=HTML).status_code == 404
    assert "dashboard" not in call("GET", "/", headers=HTML).text
    assert call("GET", "/docs", headers=HTML).status_code == 200


def test_nothing_of_the_pages_is_imported_before_somebody_asks():
    code = (
        "import sys, zse.serve.app, zse.serve.boot, zse.serve.http.shell\n"
        "print(*[m for m in sys.modules if 'serve.ui' in m or 'sessions' in m or m == 'sqlite3'])"
    )
    command = [sys.executable, "-c", code]
    environment = subprocess_environment(PYTHONPATH=":".join(sys.path))
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == []


def test_the_last_start_is_drawn_from_the_ledger_within_its_picture():
    clock = iter([0.0, 0.1, 0.3, 0.5])
    ledger = Ledger(clock=lambda: next(clock))
    with ledger.phase("weights"):
        pass
    ledger.mark("ready")
    bars = {bar.name: bar for bar in waterfall(ledger)}
    assert bars["weights"].start < bars["ready"].start
    assert bars["ready"].is_moment
    assert bars["weights"].duration_ms == 200
    assert all(0 <= bar.start <= WIDTH for bar in bars.values())
