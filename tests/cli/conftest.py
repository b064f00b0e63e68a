"""Where a command of a test keeps what is a user's."""

import pytest


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder of keys and of the audit log, of this test alone."""
    monkeypatch.setenv("ZSE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
