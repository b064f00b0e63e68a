"""Workers share the jobs; an error ends the build instead of the answers."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from zse.kernels.build import pool
from zse.kernels.build.pool import Answer, run_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOBS = [{"key": str(index)} for index in range(50)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the keys that workers were asked for; they answer at once."""
    keys: list[str] = []

    @contextmanager
    def worker(*_: object) -> Iterator[Callable[[dict[str, Any]], Answer]]:
        def ask(job: dict[str, Any]) -> Answer:
            keys.append(job["key"])
            return Answer(job=job, facts={}, error="")

        yield ask

    monkeypatch.setattr(pool, "_worker", worker)
    return keys


@pytest.mark.parametrize("processes", [1, 3, 80])
def test_every_job_is_asked_and_told_once(asked: list[str], processes: int) -> None:
    told: list[str] = []
    run_jobs(
        JOBS,
        processes=processes,
        environment={},
        progress=lambda answer: told.append(answer.job["key"]),
    )
    assert sorted(asked) == sorted(told) == sorted(job["key"] for job in JOBS)


def test_no_jobs_have_no_answers(asked: list[str]) -> None:
    run_jobs([], processes=2, environment={}, progress=pytest.fail)
    assert asked == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_ends_the_build_and_starts_nothing_more(
    asked: list[str], error: type[BaseException]
) -> None:
    def progress(_: Answer) -> None:
        raise error

    with pytest.raises(error):
        run_jobs(JOBS, processes=3, environment={}, progress=progress)
    assert len(asked) <= 3


class Compiler:
    """Stands for a worker process whose job never ends by itself."""

    def __init__(self) -> None:
        self.ended = threading.Event()


def test_an_interrupt_stops_the_compilers_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Barrier(3)
    killed: list[Compiler] = []

    @contextmanager
    def worker(_: dict[str, str], running: set[Any]) -> Iterator[Callable[..., Answer]]:
        compiler = Compiler()
        running.add(compiler)

        def ask(job: dict[str, Any]) -> Answer:
            started.wait()
            if job["key"] != "0":
                assert compiler.ended.wait(60)
            return Answer(job=job, facts={}, error="")

        yield ask

    def kill(compiler: Compiler) -> None:
        killed.append(compiler)
        compiler.ended.set()

    def progress(answer: Answer) -> None:
        if answer.job["key"] == "0":
            raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_worker", worker)
    monkeypatch.setattr(pool, "_kill", kill)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(JOBS, processes=3, environment={}, progress=progress)
    assert len(killed) == 3
