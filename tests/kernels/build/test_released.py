from __future__ import annotations

from email.message import Message

import pytest

from zse.kernels.build import released
from zse.kernels.build.released import release_address


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Message:
    """What the installed package says of itself."""
    said = Message()
    monkeypatch.setattr(released, "metadata", lambda _: said)
    return said


def test_the_setting_wins(package: Message) -> None:
    package["Project-URL"] = "Kernel packs, https://ghcr.io/acme/zse-kernels"
    assert release_address("oci:packs") == "oci:packs"


def test_the_package_says_where_its_packs_are(package: Message) -> None:
    package["Project-URL"] = "Source, https://example.org/zse"
    package["Project-URL"] = "Kernel packs, https://ghcr.io/acme/zse-kernels"
    assert release_address("") == "ghcr.io/acme/zse-kernels"


def test_nobody_is_asked_where_nothing_says_whom(package: Message) -> None:
    assert release_address("") == ""
    package["Project-URL"] = "Kernel packs, https://ghcr.io/acme/zse-kernels"
    assert release_address("none") == ""


def test_code_that_is_not_installed_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released, "DISTRIBUTION", "no-such-distribution")
    assert release_address("") == ""
