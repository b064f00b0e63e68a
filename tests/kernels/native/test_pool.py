"""Threads that run a step's operations together."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zse.kernels.errors import NativeLibraryError
from zse.kernels.native.library import load

if TYPE_CHECKING:
    from collections.abc import Iterator

SPIN = 50_000
TASKS = Path("/proc/self/task")


def drive(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(program), *(str(one) for one in arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@contextmanager
def busy_neighbours() -> Iterator[None]:
    """Two processes a core that compute without end."""
    burn = "while True: pass"
    count = 2 * len(os.sched_getaffinity(0))
    processes = [subprocess.Popen([sys.executable, "-S", "-c", burn]) for _ in range(count)]
    try:
        yield
    finally:
        for one in processes:
            one.kill()
            one.wait()


@pytest.mark.parametrize("spin", [0, SPIN], ids=["sleeping", "spinning"])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_piece_is_done_once_and_after_the_operation_before(
    pool_driver: Path, threads: int, spin: int
) -> None:
    done = drive(pool_driver, threads, spin, 400, threads)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("threads", [2, 8])
def test_a_step_is_right_while_neighbours_take_the_cores(pool_driver: Path, threads: int) -> None:
    with busy_neighbours():
        done = drive(pool_driver, threads, SPIN, 30, 5)
    assert done.returncode == 0, done.stdout


def test_many_pools_start_and_stop_one_after_the_other(pool_driver: Path) -> None:
    assert drive(pool_driver, 4, SPIN, 2, 3, "many").returncode == 0


def test_a_pool_that_never_ran_a_step_stops(pool_driver: Path) -> None:
    assert drive(pool_driver, 8, SPIN, 0, 3, "many").returncode == 0


def test_a_child_after_a_fork_runs_steps_alone_and_stops(pool_driver: Path) -> None:
    assert drive(pool_driver, 4, SPIN, 50, 3, "fork").returncode == 0


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_a_pool_of_a_number_of_threads_that_no_machine_has_is_refused(threads: int) -> None:
    with pytest.raises(NativeLibraryError, match=f"{threads} threads"):
        load().start_pool(threads)


def test_a_system_that_starts_no_more_threads_is_named(pool_driver: Path) -> None:
    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (64 << 20, 64 << 20))

    done = subprocess.run(
        [str(pool_driver), "512", "0", "1", "1"],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=little_memory,
    )
    assert (done.returncode, done.stdout) == (2, "no pool\n")


def test_threads_of_a_pool_have_a_name_take_no_signals_and_end_with_it() -> None:
    before = set(TASKS.iterdir())
    pool = load().start_pool(3)
    own = set(TASKS.iterdir()) - before
    assert len(own) == 2
    for thread in own:
        lines = (thread / "status").read_text().splitlines()
        assert lines[0] == "Name:\tzse-kernels"
        blocked = next(line.split()[1] for line in lines if line.startswith("SigBlk"))
        assert int(blocked, 16) >> 1 & 1  # SIGINT
    pool.close()
    assert not own & set(TASKS.iterdir())
