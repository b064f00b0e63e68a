"""Both sides prove that they know the secret; nothing can be forged, changed or asked again."""

from __future__ import annotations

import pytest

from zse.errors import UsageError
from zse.stream.peers.proof import (
    NONCE_HEADER,
    PROOF_HEADER,
    TIME_HEADER,
    PeerProofError,
    RequestCheck,
    answer_proof,
    check_answer,
    read_secret,
    signed_request,
)

SECRET = b"0123456789abcdef"
PATH = "/zse/weights/abc"


def headers(**changes):
    signed = signed_request(SECRET, PATH, 0, 10)
    return {name.lower(): value for name, value in {**signed, **changes}.items()}


def test_a_request_counts_once():
    check, asked = RequestCheck(SECRET), headers()
    assert check.check(PATH, asked) == asked[NONCE_HEADER]
    with pytest.raises(PeerProofError, match="came before"):
        check.check(PATH, asked)


@pytest.mark.parametrize(
    "changes",
    [
        {"Range": "bytes=0-99"},
        {NONCE_HEADER: "0" * 32},
        {NONCE_HEADER: ""},
        {NONCE_HEADER: "X" * 32},
        {TIME_HEADER: "12"},
        {TIME_HEADER: "-1"},
        {TIME_HEADER: "9" * 40},
        {PROOF_HEADER: "0" * 64},
        {PROOF_HEADER: "\u00e9"},
        {PROOF_HEADER: ""},
    ],
)
def test_what_was_changed_is_refused(changes):
    with pytest.raises(PeerProofError):
        RequestCheck(SECRET).check(PATH, headers(**changes))


def test_another_path_another_secret_and_another_time_are_refused():
    with pytest.raises(PeerProofError):
        RequestCheck(SECRET).check("/zse/weights/other", headers())
    with pytest.raises(PeerProofError):
        RequestCheck(b"another secret...").check(PATH, headers())
    for seconds in (-3600, 3600):
        late = RequestCheck(
            SECRET, clock=lambda seconds=seconds: __import__("time").time() + seconds
        )
        with pytest.raises(PeerProofError, match="off"):
            late.check(PATH, headers())


def test_requests_are_forgotten_when_their_time_is_over():
    now = [__import__("time").time()]
    check = RequestCheck(SECRET, clock=lambda: now[0])
    for _ in range(100):
        check.check(PATH, headers())
    now[0] += 130
    for _ in range(2):
        with pytest.raises(PeerProofError):
            check.check(PATH, headers())
    now[0] -= 130
    check._forget(now[0] + 1000)
    check._forget(now[0] + 1000)
    assert check._seen == {}


def test_an_answer_is_proven_for_its_own_request():
    proof = answer_proof(SECRET, "ab" * 16, 206, "bytes 0-9/100")
    check_answer(SECRET, "ab" * 16, 206, "bytes 0-9/100", proof)
    for wrong in (
        (SECRET, "cd" * 16, 206, "bytes 0-9/100"),
        (SECRET, "ab" * 16, 200, "bytes 0-9/100"),
        (SECRET, "ab" * 16, 206, "bytes 0-9/999"),
        (b"another secret...", "ab" * 16, 206, "bytes 0-9/100"),
    ):
        with pytest.raises(PeerProofError):
            check_answer(*wrong, proof)


def test_a_secret_comes_from_a_file_and_is_long_enough(tmp_path):
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    assert read_secret("", str(path)) == SECRET
    assert read_secret("0123456789abcdef", "") == SECRET
    for text, file in (("", ""), ("short", ""), ("", str(tmp_path / "absent"))):
        with pytest.raises(UsageError):
            read_secret(text, file)
