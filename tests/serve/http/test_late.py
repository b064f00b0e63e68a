"""Modules that a request brings in, and nothing before it."""

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

from zse.serve.app import HOT_ROUTES
from zse.serve.http.late import Late
from zse.settings import subprocess_environment

ROOT = str(Path(__file__).parents[3])


LATE = [route for route in HOT_ROUTES if isinstance(route.handler, Late)]


def test_a_late_handler_answers_each_time(call):
    assert [call("GET", "/").status_code for _ in range(2)] == [200, 200]


def test_a_late_route_takes_its_own_methods_only(call, check_error):
    check_error(call("DELETE", "/"), 405, code="method_not_supported")


def test_every_late_route_leads_to_a_handler():
    assert LATE
    for route in LATE:
        handler = asyncio.run(route.handler.load())
        assert inspect.iscoroutinefunction(handler), route.path
        assert handler.__name__ == route.handler.__name__


def test_the_application_imports_none_of_them():
    code = "import sys, zse.serve.app; print(*sys.modules)"
    environment = subprocess_environment(PYTHONPATH=ROOT)
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    loaded = set(output.stdout.split())
    late = [route.handler for route in LATE]
    assert not {asyncio.run(r.load()).__module__ for r in late} & loaded
