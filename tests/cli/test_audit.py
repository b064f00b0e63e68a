"""``zse audit``."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta

import pytest

from zse.cli import run
from zse.serve.access.key_file import KeyFile
from zse.serve.access.keys import make_key
from zse.serve.audit.entry import AuditEntry, encode_line, moment_of
from zse.serve.audit.files import AuditFiles


@pytest.fixture
def zse(home, capsys):
    def call(*words):
        code = run(list(words))
        return code, *capsys.readouterr()

    return call


def entry(number, *, seconds_ago=30, **facts):
    fields = {
        "request_id": f"req_{number}",
        "timestamp": moment_of(datetime.now(UTC) - timedelta(seconds=seconds_ago)),
        "method": "POST",
        "path": "/v1/chat/completions",
        "status_code": 200,
        "latency_ms": 12.5,
        "api_key_name": "my-app",
        "client_ip": "127.0.0.1",
        "user_agent": "tests",
        "model_id": "tiny",
        "total_tokens": 7,
    }
    return AuditEntry(**{**fields, **facts})


@pytest.fixture
def filled(home):
    entries = [
        entry(0, seconds_ago=3 * 86400),
        entry(1, seconds_ago=2 * 3600),
        entry(2, status_code=429, total_tokens=0),
        entry(3, api_key_name=None, user_agent="=cmd|' /C calc'!A0"),
    ]
    files = AuditFiles(home / "audit")
    files.append([encode_line(each) for each in entries])
    return files


def test_without_a_command_the_last_day_is_summed_up(zse, filled):
    code, out, _ = zse("audit")
    assert code == 0
    assert "3 requests in 24 h, 14 tokens" in out
    assert zse("audit", "summary", "-h", "1")[1].startswith("2 requests in 1 h")
    sums = json.loads(zse("audit", "summary", "--hours", "100", "--json")[1])
    assert (sums["total_requests"], sums["rate_limited"]) == (4, 1)


def test_the_last_requests_come_newest_first(zse, filled):
    lines = zse("audit", "recent", "-l", "2")[1].splitlines()
    assert len(lines) == 2
    assert "200" in lines[0]
    assert "429" in lines[1]
    assert [e["request_id"] for e in json.loads(zse("audit", "recent", "--json")[1])] == [
        "req_3",
        "req_2",
        "req_1",
        "req_0",
    ]


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["-k", "my-app"], ["req_2", "req_1", "req_0"]),
        (["-s", "429"], ["req_2"]),
        (["-s", "2xx", "--since", "1h"], ["req_3"]),
        (["-p", "/v1/chat"], ["req_3", "req_2", "req_1", "req_0"]),
        (["-p", "/api"], []),
        (["--until", "1h", "--since", "1d"], ["req_1"]),
        (["--since", "2999-01-01"], []),
    ],
)
def test_requests_are_found_by_what_they_say(zse, filled, flags, found):
    out = zse("audit", "query", *flags, "--json")[1]
    assert [e["request_id"] for e in json.loads(out)] == found


def test_the_log_is_exported_as_lines_and_as_a_table(zse, filled, tmp_path):
    target = tmp_path / "logs.jsonl"
    code, _, err = zse("audit", "export", "-o", str(target))
    assert code == 0
    assert "4 requests" in err
    assert target.read_bytes() == filled.path.read_bytes()
    code, _, err = zse("audit", "export", "-o", str(target))
    assert code == 2
    assert "exists already" in err
    out = zse("audit", "export", "-f", "csv", "-s", "429")[1]
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["request_id"] for row in rows] == ["req_2"]
    assert list(rows[0])[-2:] == ["total_tokens", "tools"]


def test_a_table_holds_no_formula_of_a_client(zse, filled):
    out = zse("audit", "export", "-f", "csv")[1]
    agents = [row["user_agent"] for row in csv.DictReader(io.StringIO(out))]
    assert agents[-1].startswith("'=cmd")


def test_the_log_says_how_large_it_is_and_is_cleared(zse, filled, home):
    facts = json.loads(zse("audit", "stats", "--json")[1])
    assert facts["folder"] == str(home / "audit")
    assert facts["file_bytes"] == filled.path.stat().st_size
    assert zse("audit", "clear", "--all")[0] == 0
    assert json.loads(zse("audit", "recent", "--json")[1]) == []


def test_where_nobody_asked_there_is_nothing(zse):
    assert zse("audit")[1].startswith("0 requests")
    assert zse("audit", "clear")[0] == 0
    assert zse("audit", "stats")[0] == 0


def test_the_use_of_a_key_is_that_of_its_last_minute(zse, filled, home):
    new = make_key("my-app", rate_limit=60)
    KeyFile(home / "api_keys.json").add(new.key)
    filled.append([encode_line(entry(4))])
    use = json.loads(zse("api-key", "status", "my-app", "--json")[1])
    assert (use["requests_last_minute"], use["tokens_last_minute"]) == (1, 7)
    assert "1 of 60 requests, 7 tokens" in zse("api-key", "status")[1]
    assert zse("api-key", "status", "nobody")[0] == 3
