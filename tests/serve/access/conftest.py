"""Keys in a folder of their own, and a server that asks for them."""

import pytest

from zse.serve.access.key_file import KeyFile
from zse.serve.access.keyring import Keyring
from zse.serve.access.keys import make_key
from zse.serve.access.policy import Access


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def key_file(tmp_path):
    return KeyFile(tmp_path / "home" / "api_keys.json")


@pytest.fixture
def add_key(key_file):
    """Add a key to the file; returns what it is."""

    def add(name="alice", **facts):
        new = make_key(name, **facts)
        key_file.add(new.key)
        return new.secret

    return add


@pytest.fixture
def access(key_file, clock):
    """Makes what decides about requests, as a start does."""

    def make(**options):
        keyring = Keyring(key_file=key_file, clock=clock)
        return Access(keyring, **{"is_local": False, "now": clock, **options})

    return make


@pytest.fixture
def guarded(state, make_caller, access):
    """Calls an application that other machines reach, or on loopback with ``is_local=True``."""

    def make(**options):
        state.access = access(**options)
        return make_caller()

    return make
