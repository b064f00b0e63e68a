"""Why a server does not start: one sentence and a hint, in text or as one JSON line."""

import json
import logging

import pytest

from zse.errors import StoreError
from zse.serve.failures import report_failure
from zse.serve.telemetry.logs import configure_logging
from zse.settings import Settings


@pytest.fixture
def log(capsys):
    """Return what was logged; the loggers are as before afterwards."""
    loggers = [logging.getLogger(name) for name in ("zse", "uvicorn", "asyncio")]
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield lambda: capsys.readouterr().err
    for logger, handlers, propagate, level in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def fail() -> BaseException:
    try:
        raise RuntimeError("[enforce fail] no memory\nframe #0\nframe #1")
    except RuntimeError as error:
        return error


def test_in_a_container_a_failure_is_one_json_line_without_a_traceback(log):
    configure_logging("info", "json")
    assert report_failure("the model could not be loaded", fail(), Settings()) == 1
    (line,) = log().splitlines()
    assert json.loads(line)["message"] == (
        "the model could not be loaded: RuntimeError: [enforce fail] no memory"
    )
    assert "--log-level debug" in json.loads(line)["hint"]
    assert "exception" not in json.loads(line)


def test_debugging_shows_the_traceback(log):
    configure_logging("debug", "json")
    report_failure("the model could not be loaded", fail(), Settings())
    assert "Traceback" in json.loads(log())["exception"]


def test_for_a_person_it_is_a_sentence_and_a_hint(log):
    configure_logging("info", "text")
    error = StoreError("the cache is full", hint="empty it")
    assert (
        report_failure("the model could not be loaded", error, Settings()) == StoreError.exit_code
    )
    assert log() == "error: the model could not be loaded: the cache is full\nhint: empty it\n"
