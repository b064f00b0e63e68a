"""A flood of equal lines is cut, and what was cut is told."""

import logging

from zse.serve.telemetry.logs import configure_logging
from zse.serve.telemetry.throttle import MAX_LINES, MAX_REFUSALS, WINDOW_SECONDS, Throttle


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def record(status=200, level=logging.INFO, message="response", path="/"):
    made = logging.makeLogRecord({"name": "zse", "levelno": level, "msg": message})
    made.status, made.path = status, path
    return made


def test_refusals_are_cut_whatever_the_client_wrote_and_other_lines_go_on():
    throttle = Throttle(Clock())
    passed = [throttle.filter(record(404, path=f"/{number}")) for number in range(1000)]
    assert sum(passed) == MAX_REFUSALS
    assert passed[:MAX_REFUSALS] == [True] * MAX_REFUSALS
    assert throttle.filter(record(401))
    assert throttle.filter(record(404, message="generation"))


def test_what_went_well_is_cut_much_later():
    throttle = Throttle(Clock())
    assert sum(throttle.filter(record()) for _ in range(2 * MAX_LINES)) == MAX_LINES
    assert sum(throttle.filter(record(0, logging.WARNING)) for _ in range(1000)) == MAX_REFUSALS


def test_the_next_window_begins_with_how_many_were_left_out():
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(MAX_REFUSALS + 7):
        throttle.filter(record(404))
    clock.now += WINDOW_SECONDS
    first, second = record(404), record(404)
    assert throttle.filter(first)
    assert throttle.filter(second)
    assert first.left_out == 7
    assert not hasattr(second, "left_out")


def test_the_servers_log_is_throttled(capsys):
    before = {name: logging.getLogger(name).handlers for name in ("zse", "uvicorn", "asyncio")}
    try:
        configure_logging("info", "json")
        for number in range(1000):
            logging.getLogger("zse.serve").warning("no %s", number)
    finally:
        for name, handlers in before.items():
            logging.getLogger(name).handlers = handlers
            logging.getLogger(name).propagate = True
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert len(capsys.readouterr().err.splitlines()) == MAX_REFUSALS
