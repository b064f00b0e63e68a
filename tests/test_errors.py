from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import zse
from zse.errors import ZSEError


def all_error_classes() -> list[type[ZSEError]]:
    for module in pkgutil.walk_packages(zse.__path__, "zse."):
        if module.name.endswith("errors"):
            importlib.import_module(module.name)
    found: list[type[ZSEError]] = []
    queue = [ZSEError]
    while queue:
        cls = queue.pop()
        found.append(cls)
        queue.extend(cls.__subclasses__())
    return found


@pytest.mark.parametrize("error", all_error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_carries_exit_code_status_type_and_docstring(error: type[ZSEError]) -> None:
    assert 1 <= error.exit_code < 126
    assert 400 <= error.http_status < 600
    error_type = error.__new__(error).error_type
    assert error_type in {"server_error", "invalid_request_error", "rate_limit_error"}
    assert inspect.getdoc(error)


def test_message_is_what_str_shows_and_the_hint_stays_apart() -> None:
    error = ZSEError("disk is full", hint="free some space", param="out")
    assert str(error) == "disk is full"
    assert (error.hint, error.param) == ("free some space", "out")
