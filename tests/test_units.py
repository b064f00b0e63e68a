"""Sizes in bytes."""

from __future__ import annotations

import pytest

from zse.errors import UsageError
from zse.units import align_up, memory_text, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("250MB", 250_000_000), ("1.5 GB", 1_500_000_000), ("2gib", 2 << 30), ("3k", 3000)],
)
def test_sizes_are_read_as_people_write_them(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "0", "1 parsec"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError):
        parse_size(text)


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, 0), (1, 256), (255, 256), (256, 256), (257, 512)]
)
def test_the_next_multiple_is_not_below(offset, expected):
    assert align_up(offset, 256) == expected


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(12, "12 B"), (1500, "1.5 KB"), (2.5e6, "2.5 MB"), (7e10, "70.00 GB")]
)
def test_sizes_of_files_are_decimal(num_bytes: float, text: str) -> None:
    assert size_text(num_bytes) == text


def test_sizes_of_memory_are_binary():
    assert memory_text(3 << 29) == "1.5 GiB"
