"""What the audit log says."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from zse.serve.audit.entry import encode_line, moment_of
from zse.serve.audit.log import AuditLog
from zse.serve.audit.query import Wanted, find, newest, summarize


@pytest.fixture
def filled(files, make_entry):
    entries = [
        make_entry(0),
        make_entry(1, status_code=429, total_tokens=0, model_id=None),
        make_entry(2, api_key_name=None, path="/v1/models", model_id=None, total_tokens=0),
        make_entry(3, status_code=503, path="/api/stats"),
    ]
    files.append([encode_line(entry) for entry in entries])
    return files


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, [0, 1, 2, 3]),
        ({"since": "2026-02-24T10:00:01.000Z"}, [1, 2, 3]),
        ({"until": "2026-02-24T10:00:02.000Z"}, [0, 1]),
        ({"key": "my-app"}, [0, 1, 3]),
        ({"key": "other"}, []),
        ({"path": "/v1/"}, [0, 1, 2]),
        ({"status": "429"}, [1]),
        ({"status": "5xx"}, [3]),
        ({"status": "4"}, []),
        ({"key": "my-app", "status": "200"}, [0]),
    ],
)
def test_entries_are_found_by_what_they_say(filled, wanted, found):
    ids = [entry.request_id for entry in find(filled, Wanted(**wanted))]
    assert ids == [f"req_{number}" for number in found]


def test_the_newest_come_first(filled):
    assert [e.request_id for e in newest(filled, Wanted(), 2)] == ["req_3", "req_2"]


def test_a_damaged_line_is_left_out(filled):
    with filled.path.open("ab") as file:
        file.write(b'{"request_id": 1}\n\xff\xfe\nnull\n')
    assert len(list(find(filled, Wanted()))) == 4


def test_what_a_server_remembers_is_found_where_it_keeps_no_files(make_entry):
    log = AuditLog()
    log.add(make_entry(0))
    log.add(make_entry(1, status_code=429))
    assert [e.request_id for e in find(log, Wanted(status="429"))] == ["req_1"]
    assert [e.request_id for e in newest(log, Wanted(), 5)] == ["req_1", "req_0"]


def test_sums_are_those_of_the_entries(filled):
    sums = summarize(find(filled, Wanted()))
    assert sums["total_requests"] == 4
    assert sums["total_tokens"] == 14
    assert (sums["errors"], sums["rate_limited"]) == (2, 1)
    assert sums["latency_ms"] == {"mean": 25.0, "p50": 30.0, "p95": 40.0}
    assert sums["by_key"] == {"my-app": 3, "-": 1}
    assert sums["by_status"] == {"200": 2, "429": 1, "503": 1}
    assert sums["by_model"] == {"tiny": 2}


def test_the_sums_of_nothing_are_nothing():
    assert summarize([])["latency_ms"] == {"mean": 0.0, "p50": 0.0, "p95": 0.0}


def test_moments_sort_as_texts():
    noon = datetime(2026, 2, 24, 12, tzinfo=UTC)
    assert moment_of(noon) == "2026-02-24T12:00:00.000Z"
    assert moment_of(noon.astimezone(timezone(timedelta(hours=5)))) == moment_of(noon)
    assert moment_of(noon) < moment_of(noon + timedelta(milliseconds=1))
