"""The keys that a running server knows."""

import hmac

import pytest

from zse.errors import BadSettingError, RefusedError, UsageError
from zse.serve.access import keyring as keyring_module
from zse.serve.access.key_file import KeyFile
from zse.serve.access.keyring import LOOK_SECONDS, Keyring, SecretFile, parse_secrets


@pytest.fixture
def keyring(key_file, clock):
    return Keyring(key_file=key_file, clock=clock)


def test_a_key_made_while_the_server_runs_is_known_within_a_second(keyring, clock, add_key):
    secret = add_key().encode()
    assert keyring.find(secret) is None
    clock.seconds += LOOK_SECONDS
    assert keyring.find(secret).name == "alice"


def test_a_deleted_key_is_unknown_within_a_second(keyring, clock, add_key, key_file):
    secret = add_key().encode()
    clock.seconds += LOOK_SECONDS
    assert keyring.find(secret)
    key_file.update("alice", lambda _: None)
    clock.seconds += LOOK_SECONDS
    assert keyring.find(secret) is None


def test_a_thousand_requests_look_at_the_file_once(key_file, clock, monkeypatch):
    looks = []
    version = KeyFile.version
    monkeypatch.setattr(KeyFile, "version", lambda self: looks.append(1) or version(self))
    keyring = Keyring(key_file=key_file, clock=clock)
    looks.clear()
    clock.seconds += LOOK_SECONDS
    for _ in range(1000):
        keyring.find(b"zse-" + b"x" * 43)
    assert len(looks) == 1


def test_a_key_is_compared_with_all_others_in_constant_time(add_key, key_file, monkeypatch):
    secrets = [add_key(f"k{index}").encode() for index in range(5)]
    compared = []

    class Watched:
        @staticmethod
        def compare_digest(one, other):
            compared.append((one, other))
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(keyring_module, "hmac", Watched)
    ring = Keyring(key_file=key_file)
    digests = [key.sha256 for key in key_file.read().keys]
    for secret in (*secrets, b"zse-" + b"x" * 43):
        compared.clear()
        ring.find(secret)
        assert [digest for _, digest in compared] == digests
        assert {len(one) for one, _ in compared} == {64}


def test_a_file_that_breaks_while_the_server_runs_changes_nothing(
    keyring, clock, add_key, key_file
):
    secret = add_key().encode()
    clock.seconds += LOOK_SECONDS
    assert keyring.find(secret)
    key_file.path.write_text("broken")
    clock.seconds += LOOK_SECONDS
    assert keyring.find(secret)


def test_a_broken_file_ends_a_start(key_file, add_key):
    add_key()
    key_file.path.write_text("broken")
    with pytest.raises(RefusedError):
        Keyring(key_file=key_file)


def test_secrets_of_the_environment_have_scopes():
    keys = parse_secrets(" sk-one-secret, admin:sk-two-secret ,metrics:sk-three,,x:sk-four", "env")
    assert [(key.name, key.scope) for key in keys] == [
        ("env-1", "inference"),
        ("env-2", "admin"),
        ("env-3", "metrics"),
        ("env-4", "inference"),
    ]
    ring = Keyring(fixed=keys)
    assert ring.find(b"sk-two-secret").scope == "admin"
    assert ring.find(b"x:sk-four").name == "env-4"


def test_a_secret_that_is_too_short_is_refused_without_being_told():
    with pytest.raises(UsageError) as caught:
        parse_secrets("good-enough-secret,hush", "environment")
    assert "environment-2" in str(caught.value)
    assert "hush" not in str(caught.value) + caught.value.hint


def test_a_mounted_secret_is_followed_through_the_links_of_kubernetes(tmp_path, clock):
    for name, text in (
        ("v1", "# ours\nsk-the-first\n"),
        ("v2", "admin:sk-the-second,sk-third-one"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(text)
    (tmp_path / "data").symlink_to("v1")
    (tmp_path / "keys").symlink_to("data/keys")
    ring = Keyring(secret_file=SecretFile(tmp_path / "keys"), clock=clock)
    assert ring.find(b"sk-the-first")
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").replace(tmp_path / "data")
    clock.seconds += LOOK_SECONDS
    assert ring.find(b"sk-the-first") is None
    assert ring.find(b"sk-the-second").scope == "admin"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"short"])
def test_a_mounted_secret_that_is_none_ends_a_start(tmp_path, content):
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises((BadSettingError, UsageError)):
        Keyring(secret_file=SecretFile(tmp_path / "keys"))
