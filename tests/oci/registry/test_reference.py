from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zse.errors import ZSEError
from zse.oci.errors import BadReferenceError
from zse.oci.registry.reference import parse_reference


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag"),
    [
        ("zse", "docker.io", "library/zse", ""),
        ("me/zse:1.0", "docker.io", "me/zse", "1.0"),
        ("localhost/zse", "localhost", "zse", ""),
        ("127.0.0.1:5000/a/b:t", "127.0.0.1:5000", "a/b", "t"),
        ("registry.example/a-b/c__d:v1_2", "registry.example", "a-b/c__d", "v1_2"),
        ("[::1]:5000/a", "[::1]:5000", "a", ""),
    ],
)
def test_references_are_taken_apart(text, host, repository, tag):
    reference = parse_reference(text)
    assert (reference.host, reference.repository, reference.tag) == (host, repository, tag)


def test_digest_wins_over_tag():
    digest = "sha256:" + "a" * 64
    assert parse_reference(f"x/y:t@{digest}").identifier == digest
    assert parse_reference("x/y").identifier == "latest"


@pytest.mark.parametrize(
    "text",
    ["", "UPPER", "a//b", "a:b:c", "a@sha256:12", "-a", "a b", "host.example/", "ex_.com:x/a"],
)
def test_text_that_is_no_reference_is_refused(text):
    with pytest.raises(BadReferenceError, match="not an image reference"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("127.0.0.1:5000/a", True),
        ("localhost:5000/a", True),
        ("[::1]:5000/a", True),
        ("10.0.0.1:5000/a", False),
        ("localhost.example/a", False),
        ("a", False),
    ],
)
def test_only_this_machine_is_loopback(text, is_loopback):
    assert parse_reference(text).is_loopback is is_loopback


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text):
    try:
        reference = parse_reference(text)
    except ZSEError:
        return
    assert parse_reference(str(reference)) == reference
