"""Flags are read without the parser where they are plain, and then as the parser reads them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zse.option import options_of
from zse.serve.command_line import build_parser, read_plain
from zse.server_options import ServeOptions

PARSER = build_parser()
ROWS = {
    flag: row
    for key, row in options_of(ServeOptions).items()
    if row.by_hand and key != "model"
    for flag in row.flags
}
VALUES = st.sampled_from(
    ["1", "0", "2.5", "cuda", "a b", "x=y", "", "-1", "--port", "é", "1e3", "--", "-h", "inf"]
)
WORDS = st.one_of(
    st.sampled_from(sorted(ROWS)),
    st.tuples(st.sampled_from(sorted(ROWS)), VALUES).map("=".join),
    st.sampled_from(
        [
            "--no-ui",
            "--ui",
            "--no-port",
            "--no-share-weights",
            "--no-ui=1",
            "--po",
            "--nonsense",
            "-p",
            "model.zse",
            "tiny",
        ]
    ),
    VALUES,
)


def by_parser(words: list[str]) -> dict[str, object] | None:
    """Return what was given by what the parser says; None where it refuses."""
    try:
        found = vars(PARSER.parse_args(words))
    except SystemExit:
        return None
    return {key: value for key, value in found.items() if value is not None}


@settings(max_examples=500, deadline=None)
@given(words=st.lists(WORDS, max_size=6))
def test_what_is_read_without_the_parser_is_what_it_would_say(words: list[str]) -> None:
    plain = read_plain(words)
    if plain is not None:
        assert plain == by_parser(words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["m.zse", "--device", "cuda:1", "--port=8001"],
         {"model": "m.zse", "device": "cuda:1", "port": 8001}),
        (["--kv-gib", "0.5", "--kv-gib", "1"], {"kv_gib": 1.0}),
        (["--share-weights", "m.zse", "--no-ui"],
         {"model": "m.zse", "share_weights": True, "ui": False}),
        (["--models", "a", "--models=b", "--ui", "--no-ui", "--ui"],
         {"models": ["a", "b"], "ui": True}),
    ],
)  # fmt: skip
def test_plain_flags_need_no_parser(words: list[str], expected: dict[str, object]) -> None:
    assert read_plain(words) == expected


@pytest.mark.parametrize(
    "words",
    [["--port"], ["--port", "many"], ["--no-ui=1"], ["--no-port"], ["a", "b"], ["--help"]],
)
def test_what_is_not_plain_is_left_to_the_parser(words: list[str]) -> None:
    assert read_plain(words) is None
