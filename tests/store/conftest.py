from __future__ import annotations

from typing import TYPE_CHECKING

import fake_hub
import pytest
from faulty_s3 import faulty_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["faulty_s3"]


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits between attempts."""
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_hub.FakeHub]:
    """A hub on loopback that HF_ENDPOINT names; no token is set or saved."""
    with fake_hub.serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_TOKEN_PATH", "/nonexistent")
        yield server
