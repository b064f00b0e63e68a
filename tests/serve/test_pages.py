"""Pages for people: they say what is so, and load nothing from anywhere."""

import base64
import hashlib
import html.parser
from dataclasses import replace

import pytest

from zse.serve.shutdown import Presence

HTML = {"accept": "text/html,application/xhtml+xml"}


class Page(html.parser.HTMLParser):
    """A page's tags with their attributes, and its text."""

    def __init__(self, response) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        self.feed(response.text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def links(self):
        return [attributes["href"] for tag, attributes in self.tags if tag == "a"]


def check_self_contained(response):
    page = Page(response)
    loading = {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    assert not {tag for tag, _ in page.tags} & loading
    assert not [a for _, a in page.tags for name in a if name.startswith("on") or name == "src"]
    assert "://" not in response.text
    assert "@import" not in response.text
    assert "url(" not in response.text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    return page


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_plain_page_loads_nothing_and_may_load_nothing(state, make_caller, path):
    state.options = replace(state.options, ui=False)
    call = make_caller()
    page = check_self_contained(call("GET", path, headers=HTML))
    for link in page.links():
        if link.startswith("#"):
            assert ("details", {"id": link.removeprefix("#")}) in page.tags
        else:  # relative, so that it works behind a proxy that puts a path before ours
            assert not link.startswith("/")
            assert call("GET", f"/{link}").status_code == 200


def test_the_policy_lets_the_one_style_in_by_its_digest(call):
    response = call("GET", "/", headers=HTML)
    style = response.text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in response.headers["content-security-policy"]


def test_home_tells_a_browser_and_a_program_that_the_model_is_ready(call):
    assert "Ready: the model is scripted." in Page(call("GET", "/", headers=HTML)).text
    response = call("GET", "/")
    assert response.json()["status"] == "ready"
    assert response.json()["model"] == "scripted"
    assert response.headers["vary"] == "accept"


def test_home_answers_while_loading_and_while_draining(loading, state):
    state.phase = "weights"
    assert loading("GET", "/").json()["status"] == "loading weights"
    response = loading("GET", "/", headers=HTML)
    assert "Not ready: loading weights." in Page(response).text
    assert "http-equiv" in response.text
    state.presence = Presence.CLOSED
    assert loading("GET", "/").json()["status"] == "draining"


def test_the_name_of_a_model_is_text_and_no_markup(make_caller, scripted):
    call = make_caller(scripted.scripted_model(name="<script>alert(1)</script>"))
    assert "<script>alert(1)</script>" in check_self_contained(call("GET", "/", headers=HTML)).text


def test_docs_show_every_route_and_field_of_the_document(call):
    text = Page(call("GET", "/docs")).text
    document = call("GET", "/openapi.json").json()
    for path in document["paths"]:
        assert path in text
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    response = call("GET", "/docs")
    assert all(f"<code>{field}</code>" in response.text for field in fields)
    assert len(response.content) < 130_000
