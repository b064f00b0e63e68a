from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zse.store.checksum import Checksum, Hashing, etag_md5

DATA = bytes(range(256)) * 10


def md5(data: bytes) -> bytes:
    return hashlib.md5(data).digest()


@pytest.mark.parametrize(
    "checksum",
    [
        None,
        Checksum(algorithm="sha256", value=hashlib.sha256(DATA).hexdigest()),
        Checksum(algorithm="md5", value=md5(DATA).hex()),
        Checksum(algorithm="git-blob", value=hashlib.sha1(b"blob 2560\0" + DATA).hexdigest()),
        Checksum(
            algorithm="md5-parts",
            value=md5(md5(DATA[:1000]) + md5(DATA[1000:2000]) + md5(DATA[2000:])).hex() + "-3",
            part_bytes=1000,
        ),
    ],
)
def test_every_kind_of_digest_is_told_from_that_of_other_bytes(checksum: Checksum | None) -> None:
    good, bad = (Hashing(checksum, len(DATA)) for _ in range(2))
    good.update(DATA)
    bad.update(DATA[::-1])
    assert good.is_as_expected()
    assert bad.is_as_expected() is (checksum is None)
    assert good.sha256() == hashlib.sha256(DATA).hexdigest()
    assert good.size_bytes == len(DATA)


@given(st.binary(max_size=300), st.integers(1, 50), st.lists(st.integers(1, 60), max_size=20))
def test_the_digest_of_parts_does_not_depend_on_the_chunks(
    data: bytes, part_bytes: int, chunks: list[int]
) -> None:
    expected = Checksum(algorithm="md5-parts", value="", part_bytes=part_bytes)
    pieces = Hashing(expected, len(data))
    rest = data
    for length in chunks:
        pieces.update(rest[:length])
        rest = rest[length:]
    pieces.update(rest)
    parts = [data[at : at + part_bytes] for at in range(0, len(data), part_bytes)]
    whole = md5(b"".join(map(md5, parts))).hex()
    assert pieces.found().value == f"{whole}-{len(parts)}"


@pytest.mark.parametrize(
    ("etag", "found"),
    [
        (f'"{"a" * 32}"', ("a" * 32, 0)),
        (f'"{"a" * 32}-12"', ("a" * 32, 12)),
        ('"opaque"', None),
        (f'W/"{"a" * 32}"', None),
        ("", None),
    ],
)
def test_an_etag_is_an_md5_or_nothing(etag: str, found: tuple[str, int] | None) -> None:
    assert etag_md5(etag, {}) == found
