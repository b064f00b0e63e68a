"""The client that the environment of a test means."""

from __future__ import annotations

from typing import Any

from zse.settings import load_settings
from zse.store.s3_client import client_of


def default_client() -> Any:
    settings = load_settings()
    return client_of(settings.aws, settings.proxies)
