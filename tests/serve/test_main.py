"""The command line of the server, without a server."""

import json
import signal

import pytest

import zse.serve.command_line
import zse.serve.start
from zse.errors import UsageError
from zse.serve.__main__ import main


@pytest.fixture
def options_of(monkeypatch):
    """Return the options that a command line starts the server with."""
    seen = []
    monkeypatch.setattr(
        zse.serve.command_line, "start", lambda settings: seen.append(settings.serve) or 0
    )

    def start(*arguments: str):
        assert main([*arguments, "--port", "0"]) == 0
        return seen[-1]

    return start


def test_the_word_that_sagemaker_adds_is_no_model_and_makes_loading_unhealthy(options_of):
    options = options_of("serve", "my.zse")
    assert options.access.public  # AWS checks who asks
    assert (options.model, options.loading_ping_status) == ("my.zse", 503)


@pytest.mark.parametrize(("port", "bound"), [(None, 8080), ("9000", 9000)])
def test_with_that_word_the_port_is_sagemakers_unless_one_is_named(monkeypatch, port, bound):
    ports = []
    monkeypatch.setattr(
        zse.serve.command_line, "start", lambda settings: ports.append(settings.serve.port)
    )
    if port:
        monkeypatch.setenv("PORT", port)
    main(["serve", "my.zse", "--device", "cpu"])
    assert ports == [bound]


def test_without_that_word_loading_is_204(options_of):
    assert options_of("my.zse").loading_ping_status == 204


def test_how_many_answers_run_at_once_is_set_by_a_flag_or_by_the_environment(
    options_of, monkeypatch
):
    assert options_of().load.batch.max_sequences == 64
    monkeypatch.setenv("ZSE_MAX_RUNNING", "8")
    assert options_of().load.batch.max_sequences == 8
    assert options_of("--max-running", "128").load.batch.max_sequences == 128


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--max-running", "0", "max_running is 0, expected 1 or more"),
        ("--log-level", "loud", "log_level is 'loud', expected one of debug, info, warning, error"),
        ("--log-format", "xml", "log_format is 'xml', expected one of auto, text, json"),
        ("--kv-gib", "nan", "kv_gib is nan, expected 0 or more"),
    ],
)
def test_a_flag_without_meaning_is_refused_before_anything_is_opened(
    monkeypatch, capsys, flag, value, words
):
    monkeypatch.setattr(zse.serve.command_line, "start", lambda _: pytest.fail("started"))
    assert main([flag, value, "--port", "0"]) == 2
    assert words in capsys.readouterr().err


def test_a_setting_that_cannot_be_read_is_a_sentence_and_a_hint(monkeypatch, capsys):
    monkeypatch.setenv("ZSE_PORT", "abc")
    assert main([]) == 2
    line = json.loads(capsys.readouterr().err)
    assert line["message"].endswith("ZSE_PORT='abc' is not a whole number")
    assert line["hint"] == "Set ZSE_PORT to a whole number or unset it."


@pytest.mark.parametrize("host", ["a" * 80, "no such host"])
def test_a_host_that_is_none_is_refused_with_its_name(host, capsys):
    assert main(["--host", host, "--port", "0"]) == 2
    assert f"host '{host}' cannot be resolved" in capsys.readouterr().err


def test_a_signal_that_comes_while_the_port_is_bound_finds_its_handler(monkeypatch):
    seen = []

    def bind(host, port):
        seen.append(signal.getsignal(signal.SIGTERM))
        raise UsageError("taken")

    monkeypatch.setattr(zse.serve.start, "bind_socket", bind)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert main(["my.zse", "--port", "0"]) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert seen == [zse.serve.start._leave]


def test_a_flag_may_be_given_several_times(options_of):
    flags = ["--allowed-host", "a.example", "--allowed-host", "b.example", "--root-path", "/llm"]
    options = options_of("tiny", *flags).http
    assert options.allowed_hosts == ("a.example", "b.example")
    assert options.root_path == "/llm"


def test_an_option_that_no_request_could_meet_ends_the_start(start_command):
    child = start_command("-m", "zse.serve", "tiny", "--port", "0", "--cors-origin", "nonsense")
    assert child.process.wait(60) == UsageError.exit_code
    child._reader.join()
    assert any("cors_origin is 'nonsense'" in line["message"] for line in child.lines)
