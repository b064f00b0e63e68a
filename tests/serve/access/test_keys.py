"""What a key is."""

import re

import pytest

from zse.errors import UsageError
from zse.serve.access.keys import digest_of, is_well_formed, key_from_secret, make_key


def test_a_key_is_256_random_bits_that_only_its_maker_sees():
    new, other = make_key("app"), make_key("app")
    assert re.fullmatch(r"zse-[A-Za-z0-9_-]{43}", new.secret)
    assert new.secret != other.secret
    assert new.key.key_id != other.key.key_id
    assert new.key.sha256 == digest_of(new.secret.encode())
    assert new.secret not in repr(new)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "a" * 65, "ä", "a\n"])
def test_a_name_that_a_log_or_a_shell_could_misread_is_refused(name):
    with pytest.raises(UsageError, match="a key cannot be like this"):
        make_key(name)


@pytest.mark.parametrize(
    "facts",
    [
        {"scope": "root"},
        {"rate_limit": -1},
        {"priority": 101},
        {"weight": 0},
        {"expires": -1},
        {"expires": 10**12},  # no calendar of Python's has that year: `api-key list` would crash
    ],
)
def test_a_fact_out_of_range_is_refused(facts):
    with pytest.raises(UsageError):
        make_key("app", **facts)


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 257, b"with space", b"zse-\xff" * 8])
def test_what_cannot_be_a_key_is_rejected_before_it_is_hashed(secret):
    assert not is_well_formed(secret)


def test_a_secret_is_the_same_key_in_every_replica():
    one, two = (key_from_secret("sk-of-operators", f"n-{i}", "inference") for i in (1, 2))
    assert (one.key_id, one.sha256) == (two.key_id, two.sha256)
    assert one.key_id not in one.sha256


def test_only_keys_of_admins_may_raise_their_own_priority():
    inference = make_key("app", priority=3).key.to_caller()
    admin = make_key("root", scope="admin").key.to_caller()
    assert (inference.priority, inference.max_priority) == (3, 3)
    assert (admin.priority, admin.max_priority) == (0, 100)
