"""Who looks after deadlines of connections, and what it makes of time in which it did not run."""

import asyncio
from types import SimpleNamespace

import pytest

from zse.serve.http.connection_limits import ConnectionLimits
from zse.server_options import HTTPOptions


class WatchedConnection:
    """Notes when it is looked at."""

    def __init__(self):
        self.looks = []

    def enforce_deadlines(self, now):
        self.looks.append(now)


@pytest.mark.parametrize(
    ("late_seconds", "num_looks"),
    [
        ([0.0, 0.01, 0.0], [1, 2, 3]),
        ([9.0, 0.0, 0.0], [0, 1, 2]),  # what came meanwhile is read before anybody is judged
        ([9.0, 9.0, 9.0, 9.0], [0, 1, 1, 2]),  # who is always late judges all the same
    ],
    ids=["in time", "stopped for a while", "always late"],
)
def test_limits_that_did_not_run_let_what_came_be_read_before_they_judge(late_seconds, num_looks):
    async def looks_of():
        limits, connection = ConnectionLimits(HTTPOptions(read_timeout=1.0)), WatchedConnection()
        limits.add(connection)
        found = []
        for seconds in late_seconds:
            limits._sweeper.cancel()
            limits._sweep(SimpleNamespace(time=lambda: limits._due + seconds))  # noqa: B023
            found.append(len(connection.looks))
        limits._sweeper.cancel()
        return found

    assert asyncio.run(looks_of()) == num_looks
