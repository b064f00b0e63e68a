"""The page of documents shows, finds and deletes; whatever a document says is text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from zse.serve.documents.libraries import Libraries

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def site(state, call, tmp_path):
    state.settings = replace(state.settings, home=tmp_path)
    asked = {"name": f"{EVIL}.txt", "content": f"Zebras {EVIL}"}
    call("POST", "/api/rag/documents", json=asked)
    yield call
    state.one_of(Libraries).close()


def test_what_a_document_says_is_text(site):
    for path in ("/documents", "/ui/documents", "/ui/documents/search?query=zebras"):
        page = site("GET", path)
        assert page.status_code == 200
        assert "&lt;script&gt;" in page.text
        assert EVIL not in page.text
    assert "Nothing was found" in site("GET", "/ui/documents/search?query=owl").text
    assert "None yet" not in site("GET", "/documents").text


def test_a_document_is_deleted_by_a_button_of_the_page_alone(site):
    page = site("GET", "/documents").text
    csrf = re.search(r'name="csrf" content="([^"]*)"', page).group(1)
    form = {"id": re.search(r'name="id" value="([^"]*)"', page).group(1)}
    assert site("POST", "/ui/documents/delete", data=form).status_code == 403
    headers = {"x-csrf-token": csrf, "sec-fetch-site": "same-origin"}
    left = site("POST", "/ui/documents/delete", data=form, headers=headers)
    assert "None yet" in left.text
    again = site("POST", "/ui/documents/delete", data=form, headers=headers)
    assert 'role="alert"' in again.text
