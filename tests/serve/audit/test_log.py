"""The audit log of a running server."""

import threading

import pytest

from zse.serve.audit import log as log_module
from zse.serve.audit.entry import decode_entry
from zse.serve.audit.log import NUM_REMEMBERED, AuditLog


def test_the_last_thousand_are_remembered_the_newest_first(make_entry):
    log = AuditLog()
    for number in range(NUM_REMEMBERED + 5):
        log.add(make_entry(number))
    entries = log.recent()
    assert len(entries) == NUM_REMEMBERED
    assert entries[0].request_id == f"req_{NUM_REMEMBERED + 4}"
    assert entries[-1].request_id == "req_5"
    assert [entry.request_id for entry in log.recent(2)] == ["req_1004", "req_1003"]


def test_everything_is_written_by_the_end(files, make_entry):
    log = AuditLog(files)
    for number in range(1000):
        log.add(make_entry(number))
    log.close()
    assert [decode_entry(line).request_id for line in files.lines()] == [
        f"req_{number}" for number in range(1000)
    ]
    assert (log.num_added, log.num_lost) == (1000, 0)


def test_no_thread_stands_by_where_nobody_asks(files):
    before = threading.active_count()
    AuditLog(files).close()
    assert threading.active_count() <= before


def test_a_disk_that_fails_is_told_once_and_ends_nothing(files, make_entry, monkeypatch, caplog):
    def fail(lines):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "append", fail)
    log = AuditLog(files)
    for number in range(3):
        log.add(make_entry(number))
        log.flush()
    log.close()
    assert caplog.text.count("No space left") == 1
    assert (log.num_added, log.num_lost, len(log.recent())) == (3, 3, 3)


def test_a_disk_that_hangs_holds_up_nobody(files, make_entry, monkeypatch):
    stuck = threading.Event()
    monkeypatch.setattr(files, "append", lambda lines: stuck.wait(60))
    monkeypatch.setattr(log_module, "MAX_WAITING", 8)
    log = AuditLog(files)
    for number in range(5000):
        log.add(make_entry(number))
    assert log.num_added == 5000
    assert log.num_lost > 0
    stuck.set()
    log.close()


@pytest.mark.parametrize("packed_too", [False, True])
def test_clearing_forgets_what_is_remembered_and_written(files, make_entry, packed_too):
    log = AuditLog(files)
    log.add(make_entry())
    log.clear(packed_too=packed_too)
    assert log.recent() == []
    assert list(files.lines()) == []
    log.close()
