from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zse.errors import RefusedError, UsageError
from zse.store import Location, parse_location
from zse.store.location import is_hub_id


def test_a_plain_path_is_local() -> None:
    location = parse_location("models/a.zse")
    assert location == Location(scheme="file", path=Path("models/a.zse"))
    assert (location.is_local, location.url, location.name) == (True, "models/a.zse", "a.zse")


def test_a_path_object_is_taken_as_it_stands() -> None:
    assert parse_location(Path("s3:/odd")).path == Path("s3:/odd")


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_location("~/a.zse").path == Path("/home/someone/a.zse")


def test_a_file_url_is_local() -> None:
    assert parse_location("file:///data/a.zse").path == Path("/data/a.zse")


def test_an_s3_url_has_a_bucket_and_a_key() -> None:
    location = parse_location("s3://my-bucket.x/folder/a b?#%20.zse")
    assert (location.bucket, location.key) == ("my-bucket.x", "folder/a b?#%20.zse")
    assert location.url == "s3://my-bucket.x/folder/a b?#%20.zse"
    assert not location.is_prefix


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/folder/"])
def test_a_bucket_or_a_key_that_ends_in_a_slash_is_a_prefix(url: str) -> None:
    assert parse_location(url).is_prefix


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "empty"),
        ("gs://bucket/key", "gs://"),
        ("https:///x", "no web address"),
        ("https://host:port/x", "no web address"),
        ("https://host/a b", "percent-encoded"),
        ("https://host/\n", "control"),
        ("hf://owner", "no repository"),
        ("hf://owner/na..me/a", "no repository"),
        ("hf://owner/name@/a", "revision ''"),
        ("hf://owner/name@../a", "revision '..'"),
        ("hf://owner/name/../a", "'..'"),
        ("file://host/x", "relative path"),
        ("a\0b", "NUL"),
        ("~no-such-user/x", "home folder"),
        ("s3:///key", "bucket name ''"),
        ("s3://ab/key", "bucket name 'ab'"),
        ("s3://Bucket/key", "bucket name 'Bucket'"),
        ("s3://under_score/key", "under_score"),
        ("s3://-bucket/key", "-bucket"),
        ("s3://two..dots/key", "two..dots"),
        ("s3://127.0.0.1/key", "127.0.0.1"),
        ("s3://" + "b" * 64 + "/key", "bucket name"),
        ("s3://bucket//key", "empty"),
        ("s3://bucket/a//b", "empty"),
        ("s3://bucket/a/../b", ".."),
        ("s3://bucket/./b", "'.'"),
        ("s3://bucket/a\nb", "control"),
        ("s3://bucket/\udc80", "UTF-8"),
        ("s3://bucket/" + "ü" * 513, "1024 bytes"),
    ],
)
def test_a_bad_location_is_refused_with_its_reason(url: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_location(url)
    assert words in caught.value.message + caught.value.hint
    assert caught.value.hint


@given(st.text())
def test_any_text_is_parsed_or_refused_and_parsing_its_url_again_changes_nothing(text: str) -> None:
    try:
        location = parse_location(text)
    except (UsageError, RefusedError):
        return
    if not text.startswith("~"):
        assert parse_location(location.url) == location or location.is_local


@pytest.mark.parametrize(
    ("url", "repository", "revision", "key"),
    [
        ("hf://owner/name", "owner/name", "", ""),
        ("hf://owner/name/a.zse", "owner/name", "", "a.zse"),
        ("hf://owner/na-me.x@v1.0/folder/a b.zse", "owner/na-me.x", "v1.0", "folder/a b.zse"),
        ("hf://owner/name@refs%2Fpr%2F1/a", "owner/name", "refs/pr/1", "a"),
    ],
)
def test_a_hub_url_has_a_repository_a_revision_and_a_file(
    url: str, repository: str, revision: str, key: str
) -> None:
    location = parse_location(url)
    assert (location.repository, location.revision, location.key) == (repository, revision, key)
    assert parse_location(location.url) == location
    assert location.is_prefix is (key == "")


def test_a_web_url_is_taken_whole_and_shown_without_its_query() -> None:
    location = parse_location("https://host:8443/folder/a%20b.zse?key=secret#part")
    assert location.url == "https://host:8443/folder/a%20b.zse?key=secret"
    assert str(location) == "https://host:8443/folder/a%20b.zse?..."
    assert location.name == "a%20b.zse"
    assert parse_location("http://localhost:80/a").scheme == "http"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.com/a", "not encrypted"),
        ("http://127.0.0.1.example.com/a", "not encrypted"),
        ("https://user:password@host/a", "password"),
    ],
)
def test_an_unsafe_web_address_is_refused(url: str, words: str) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_location(url)
    assert words in caught.value.message
    assert "user:password" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("s3:/models/x.zse", "s3://models/x.zse"),
        ("s3:models/x.zse", "s3://models/x.zse"),
        ("hf:/owner/name", "hf://owner/name"),
        ("https:/host/x.zse", "https://host/x.zse"),
    ],
)
def test_an_address_that_lost_a_slash_is_called_that(url: str, right: str) -> None:
    with pytest.raises(UsageError, match="lacks a slash") as caught:
        parse_location(url)
    assert f"Write {right}, or ./{url} for a path." in caught.value.hint
    assert parse_location(f"./{url}").is_local
    assert parse_location(parse_location(f"./{url}").url).is_local


@pytest.mark.parametrize(
    ("page", "url"),
    [
        ("https://huggingface.co/Qwen/Qwen2.5-0.5B", "hf://Qwen/Qwen2.5-0.5B/"),
        ("https://huggingface.co/o/n/tree/v1?tab=x", "hf://o/n@v1/"),
        ("https://hf.co/o/n/tree/main/folder", "hf://o/n@main/folder/"),
        ("https://hf.co/o/n/tree/refs%2Fpr%2F1", "hf://o/n@refs%2Fpr%2F1/"),
        ("https://huggingface.co/o/n/blob/main/a/b%20c.zse", "hf://o/n@main/a/b c.zse"),
    ],
)
def test_a_page_of_the_hub_means_what_it_shows(page: str, url: str) -> None:
    assert parse_location(page).url == url


@pytest.mark.parametrize(
    "url",
    [
        "https://huggingface.co/o/n/resolve/main/a.zse",
        "https://huggingface.co/datasets/o/n",
        "https://huggingface.co/name",
        "https://example.com/o/n",
    ],
)
def test_what_is_no_page_of_a_repository_stays_a_web_address(url: str) -> None:
    assert parse_location(url) == Location(scheme="https", address=url)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", True),
        ("Qwen/Qwen2.5-0.5B", True),
        ("./folder", False),
        ("/root/model", False),
        ("a/b/c", False),
        ("a/..", False),
        ("name", False),
    ],
)
def test_hub_id_is_owner_slash_name(text: str, expected: bool) -> None:
    assert is_hub_id(text) is expected
