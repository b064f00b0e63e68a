"""The files of the audit log: no line is torn, and old ones are packed away."""

import gzip
import json
import multiprocessing
import signal
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from zse.serve.audit.entry import decode_entry, encode_line
from zse.serve.audit.files import AuditFiles
from zse.settings import subprocess_environment

ROOT = Path(__file__).parents[3]


def numbers_of(files):
    return [int(decode_entry(line).request_id.removeprefix("req_")) for line in files.lines()]


def test_lines_are_added_and_only_their_user_reads_them(files, make_entry):
    files.append([encode_line(make_entry(0))])
    files.append([encode_line(make_entry(1)), encode_line(make_entry(2))])
    assert numbers_of(files) == [0, 1, 2]
    assert stat.S_IMODE(files.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700


def test_a_line_has_the_eleven_fields(make_entry):
    line = json.loads(encode_line(make_entry()))
    assert list(line) == [
        "request_id",
        "timestamp",
        "method",
        "path",
        "status_code",
        "latency_ms",
        "api_key_name",
        "client_ip",
        "user_agent",
        "model_id",
        "total_tokens",
    ]


def test_what_clients_write_breaks_no_line(make_entry):
    line = encode_line(make_entry(path="/a\nb\r\x00", user_agent='"\n{"request_id": "forged"}\n'))
    assert line.count(b"\n") == 1


def test_a_line_that_a_crash_cut_is_cut_off(files, make_entry):
    files.append([encode_line(make_entry(0))])
    with files.path.open("ab") as file:
        file.write(encode_line(make_entry(1))[:40])
    assert numbers_of(files) == [0]
    files.append([encode_line(make_entry(2))])
    assert numbers_of(files) == [0, 2]


def test_a_file_of_one_cut_line_is_empty_again(files, make_entry):
    files.append([])
    files.path.write_bytes(b'{"request_id": "cut')
    files.append([encode_line(make_entry(3))])
    assert numbers_of(files) == [3]


def clock():
    moment = datetime(2026, 2, 24, tzinfo=UTC)
    while True:
        yield moment
        moment += timedelta(seconds=1)


def test_full_files_are_packed_and_the_oldest_go(make_files, make_entry):
    moments = clock()
    files = make_files(max_bytes=1000, num_kept=3, now=lambda: next(moments))
    for number in range(40):
        files.append([encode_line(make_entry(number))])
    assert len(files.packed()) == 3
    assert not list(files.folder.glob("audit-*.jsonl"))
    kept = numbers_of(files)
    assert kept == list(range(kept[0], 40))
    assert 0 < kept[0] < 40
    for path in files.packed():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with gzip.open(path) as packed:
            assert packed.read().endswith(b"\n")


def test_what_a_crash_left_half_packed_is_packed_by_the_next(make_files, make_entry):
    files = make_files(max_bytes=1000)
    files.append([encode_line(make_entry(0))])
    files.path.rename(files.folder / "audit-20260101T000000.000000Z.jsonl")
    assert numbers_of(files) == [0]
    for number in range(1, 6):
        files.append([encode_line(make_entry(number))])
    assert numbers_of(files) == list(range(6))
    assert len(files.packed()) == 2


def test_clearing_keeps_what_is_packed_unless_all_is_to_go(make_files, make_entry):
    files = make_files(max_bytes=1000)
    for number in range(7):
        files.append([encode_line(make_entry(number))])
    packed = len(files.packed())
    assert packed
    files.clear(packed_too=False)
    assert files.path.stat().st_size == 0
    assert len(files.packed()) == packed
    files.clear(packed_too=True)
    assert numbers_of(files) == []


def _append_some(folder, worker, lines):
    files = AuditFiles(folder, max_bytes=20_000, num_kept=1000)
    for line in lines:
        files.append([line])


def test_servers_that_share_a_folder_lose_and_mix_no_line(files, make_entry):
    context = multiprocessing.get_context("spawn")
    workers = []
    for worker in range(3):
        lines = [encode_line(make_entry(worker * 1000 + i)) for i in range(150)]
        workers.append(context.Process(target=_append_some, args=(files.folder, worker, lines)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    expected = {worker * 1000 + i for worker in range(3) for i in range(150)}
    found = numbers_of(files)
    assert len(found) == len(expected)
    assert set(found) == expected


WRITER = """
import sys, pathlib
from zse.serve.audit.entry import AuditEntry
from zse.serve.audit.files import AuditFiles
from zse.serve.audit.log import AuditLog
log = AuditLog(AuditFiles(pathlib.Path(sys.argv[1]), max_bytes=200_000, num_kept=1000))
number = 0
while True:
    log.add(AuditEntry(
        request_id=f"req_{number}", timestamp="2026-02-24T00:00:00.000Z", method="GET",
        path="/" + "x" * (number % 3000), status_code=200, latency_ms=1.0, api_key_name=None,
        client_ip=None, user_agent=None, model_id=None, total_tokens=0,
    ))
    number += 1
    if number % 200 == 0:
        log.flush()
        print(number, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_writer_that_is_killed_under_load_tears_no_line(files, number, make_entry):
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(files.folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=subprocess_environment(PYTHONPATH=str(ROOT)),
        )
        written = int(writer.stdout.readline())
        time.sleep(0.05)
        writer.send_signal(number)
        writer.wait()
        rest = writer.stdout.read().split()
        writer.stdout.close()
        written = int(rest[-1]) if rest else written
        files.append([encode_line(make_entry(10**9))])
        found = numbers_of(files)  # every line can be read
        assert found[-1] == 10**9
        assert set(range(written)) <= set(found)
        files.clear(packed_too=True)
