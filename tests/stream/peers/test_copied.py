"""Weights copied out of the memory of another process's GPU: the stub driver's, and a real one's."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import stub_libcuda
from child_processes import wait_until
from stub_libcuda import gpu, stub

from tests.stream.conftest import write_model
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.info import count_devices
from zse.device.cuda.library import Driver
from zse.errors import LoadCancelledError, StoreError
from zse.format.reader import ZSEReader
from zse.settings import subprocess_environment
from zse.stream.loader import begin_load, plan_load
from zse.stream.peers.borrowing import begin_borrowing
from zse.stream.peers.copied import CopiedLoad
from zse.stream.placement import WholeFile
from zse.stream.source import LocalSource

__all__ = ["gpu", "stub"]
PAGES = [30, 2, 41, 7, 1, 9, 5]
SCRIPT = Path(__file__).parents[2] / "support" / "lending_process.py"
ROOT = str(Path(__file__).parents[3])


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr("zse.stream.peers.borrowing.HANDSHAKE_SECONDS", 60)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "model.zse", PAGES)


@contextmanager
def lending(path, library=None, device=0):
    """A process that lends a file's weights; yields it, and the secret."""
    secret = secrets.token_hex(16)
    library = str(library or stub_libcuda.build())
    environment = subprocess_environment(
        PYTHONPATH=os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    )
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), library, str(path), secret],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    try:
        assert process.stdout.readline() == b"lends\n"
        yield process, secret.encode()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture(scope="module")
def lender(path):
    """One that no test ends."""
    with lending(path) as found:
        yield found


class Start:
    """What a start has: a file, a block, and whatever copies into it."""

    def __init__(self, gpu, path):
        with ZSEReader(path) as reader:
            self.header = reader.header
        self.gpu, self.placement = gpu, WholeFile(self.header)
        self.source = LocalSource(path)
        self.expected = path.read_bytes()[self.placement.origin_bytes :]
        self.block = gpu.allocate(self.placement.length_bytes)
        self.rests = []

    def loan(self, secret):
        digests = {group.sha256 for group in self.header.groups}
        loan = begin_borrowing(secret, digests).take(60)
        assert loan is not None
        return loan

    def begin(self, loan):
        def rest(names):
            self.rests.append(list(names))
            plan = plan_load(self.source, self.placement, groups=names)
            return begin_load(self.gpu, self.source, plan, self.block.address)

        plan = plan_load(self.source, self.placement)
        return CopiedLoad(self.gpu, loan, plan, self.block.address, rest)

    def held(self):
        stream, host = self.gpu.create_stream(), self.gpu.allocate_host(self.block.length_bytes)
        self.gpu.copy_to_host(host.address, self.block.address, self.block.length_bytes, stream)
        stream.synchronize()
        found = bytes(host.view)
        host.free()
        stream.destroy()
        return found


@pytest.fixture
def start(gpu, path):
    found = Start(gpu, path)
    yield found
    found.source.close()


class Watched:
    """A loan, and what happens before its n-th look at whether it is valid."""

    def __init__(self, loan, act, at=2):
        self._loan, self._act, self._left = loan, act, at

    def __getattr__(self, name):
        return getattr(self._loan, name)

    @property
    def is_valid(self):
        self._left -= 1
        if self._left == 0:
            self._act()
        return self._loan.is_valid


def names(*numbers):
    return [f"layers.{number}" for number in numbers]


def test_what_a_replica_has_in_its_gpu_is_copied_and_nothing_is_read(start, lender):
    _, secret = lender
    held = set(start.gpu.owner.resources)
    load = start.begin(start.loan(secret))
    for group in (6, 0, 1, 2):
        load.wait_for_group(group)
    report = load.wait()
    assert report == load.wait()
    assert (report.source, report.num_bytes) == ("peer memory", len(start.expected))
    assert set(report.phase_seconds) == {"map", "copy"}
    assert load.num_bytes() == (len(start.expected), len(start.expected))
    load._thread.join()
    assert set(start.gpu.owner.resources) == held, "what was mapped was given back"
    assert start.held() == start.expected
    assert start.rests == []


def test_groups_that_the_replica_has_not_got_come_from_the_file(gpu, lender, tmp_path):
    other = write_model(tmp_path / "other.zse", [30, 2, 5, 9])  # the first two are the same
    start = Start(gpu, other)
    _, secret = lender
    load = start.begin(start.loan(secret))
    for group in range(4):
        load.wait_for_group(group)
    report = load.wait()
    assert report.source == "peer memory and page cache"
    assert start.rests == [names(2, 3)]
    assert start.held() == start.expected
    assert load.num_bytes() == (len(start.expected), len(start.expected))
    start.source.close()


def test_a_replica_that_dies_in_the_middle_is_replaced_by_the_file(start, path, stub):
    with lending(path) as (process, secret):
        loan = start.loan(secret)

        def die():
            process.kill()
            process.wait()

        report = start.begin(Watched(loan, die)).wait()
    assert report.source == "peer memory and page cache"
    assert start.rests == [names(*range(1, 7))], "what was copied while it lived is believed"
    assert start.held() == start.expected


def test_a_replica_that_gives_its_model_up_is_replaced_by_the_file(start, path):
    with lending(path) as (process, secret):
        loan = start.loan(secret)

        def leave():
            process.stdin.close()
            wait_until(lambda: not loan.is_valid)

        report = start.begin(Watched(loan, leave, at=3)).wait()
        process.wait()
    assert report.source == "peer memory and page cache"
    assert start.rests == [names(*range(2, 7))]
    assert start.held() == start.expected


@pytest.mark.parametrize(
    "failing",
    [
        "cuMemImportFromShareableHandle:999",
        "cuMemMap:2",
        "cuMemcpyDtoDAsync_v2:1",
        "cuEventRecord:1",
    ],
)
def test_a_driver_that_cannot_copy_is_told_of_and_the_file_is_read(
    start, lender, monkeypatch, caplog, failing
):
    loan = start.loan(lender[1])
    monkeypatch.setenv("ZSE_STUB_FAIL", failing)
    report = start.begin(loan).wait()
    monkeypatch.delenv("ZSE_STUB_FAIL")
    assert report.source == "page cache"
    assert start.rests == [names(*range(7))]
    assert start.held() == start.expected
    assert "could not be copied" in caplog.text
    assert failing.partition(":")[0] in caplog.text


def test_memory_that_is_no_gpus_is_not_copied(start, lender):
    """A descriptor that means something else: of a pipe."""
    loan = start.loan(lender[1])
    reading, writing = os.pipe()
    os.dup2(reading, loan.descriptor)
    report = start.begin(loan).wait()
    assert report.source == "page cache"
    assert start.held() == start.expected
    os.close(reading)
    os.close(writing)


def test_a_load_that_is_stopped_copies_no_more_and_reads_nothing(start, lender):
    loads = []
    begun = threading.Event()

    def stop():
        begun.wait()
        loads[0].cancel()

    loads.append(start.begin(Watched(start.loan(lender[1]), stop)))
    begun.set()
    with pytest.raises(LoadCancelledError):
        loads[0].wait()
    with pytest.raises(LoadCancelledError):
        loads[0].wait_for_group(3)
    with pytest.raises(LoadCancelledError):
        loads[0].wait()
    assert start.rests == []


def test_what_the_rest_fails_with_is_told_to_all_who_wait(start, lender, tmp_path):
    loan = start.loan(lender[1])
    plan = plan_load(start.source, start.placement)

    def rest(_names):
        raise StoreError("the origin is gone")

    def leave():
        loan._connection.close()

    load = CopiedLoad(start.gpu, Watched(loan, leave), plan, start.block.address, rest)
    load.wait_for_group(0)
    for _ in range(2):
        with pytest.raises(StoreError, match="the origin is gone"):
            load.wait_for_group(1)
        with pytest.raises(StoreError, match="the origin is gone"):
            load.wait()


def test_a_group_can_be_used_before_the_next_is_there(start, lender):
    arrived = threading.Event()
    watched = Watched(start.loan(lender[1]), lambda: arrived.wait(60))
    load = start.begin(watched)
    load.wait_for_group(0)  # while the second one is held up
    assert load.num_bytes()[0] == PAGES[0] * 4096
    arrived.set()
    load.wait()


def test_many_starts_copy_from_one_replica_at_once(stub, path, lender):
    with Gpu.open(driver=stub.driver()) as device:
        starts = [Start(device, path) for _ in range(6)]
        loads = [start.begin(start.loan(lender[1])) for start in starts]
        for start, load in zip(starts, loads, strict=True):
            assert load.wait().source == "peer memory"
            assert start.held() == start.expected
            start.source.close()


# --- on a real one --------------------------------------------------------------------------------


def check_copy(path, caplog, device):
    caplog.set_level(logging.INFO)
    with lending(path, "libcuda.so.1") as (_, secret), Gpu.open(device) as real:
        start = Start(real, path)
        report = start.begin(start.loan(secret)).wait()
        assert report.source == "peer memory", caplog.text
        assert start.held() == start.expected
        start.source.close()


@pytest.mark.gpu
def test_two_processes_on_one_gpu_copy_from_each_other(tmp_path, caplog):
    check_copy(write_model(tmp_path / "model.zse", [5000, 1, 9000]), caplog, 0)


@pytest.mark.gpu
def test_a_process_on_another_gpu_copies_from_the_first(tmp_path, caplog):
    if count_devices(Driver()) < 2:
        pytest.skip("there is one GPU")
    check_copy(write_model(tmp_path / "model.zse", [5000, 1, 9000]), caplog, 1)
