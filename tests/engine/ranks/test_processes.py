"""Processes of ranks that begin before their model is known."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from zse.device.phases import no_phases
from zse.engine.ranks import group, processes
from zse.engine.ranks.opening import open_ranks
from zse.engine.ranks.processes import RankProcesses, begin_processes
from zse.errors import UsageError
from zse.format.reader import ZSEReader
from zse.models.runner import load_runner
from zse.options import load_options
from zse.quantize.locate import locate_model
from zse.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return locate_model("tiny", Settings(cache_dir=tmp_path_factory.mktemp("cache")))


TWO: dict[str, Any] = {"device": "cpu", "tensor_parallel": 2, "threads": 2}


def test_processes_that_nobody_takes_end_when_they_are_closed() -> None:
    begun = begin_processes(load_options(**TWO))
    assert begun.start_error() is None
    [process] = begun.processes
    begun.close()
    assert process.returncode is not None


def test_a_group_computes_with_processes_that_were_begun_before(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end by themselves, however long that takes on a machine that stalls."""
    monkeypatch.setattr(group, "_END_SECONDS", 60.0)
    options = load_options(**TWO)
    begun = begin_processes(options)
    reader = ZSEReader(tiny)
    opened = open_ranks(reader, options, no_phases, cache_dir=None, processes=begun)
    runner = load_runner(reader, opened.options, cache_dir=None, part=opened.part)
    opened.wait_until_ready(runner)
    [process] = begun.processes
    assert process.poll() is None
    runner.close()
    assert process.returncode == 0
    reader.close()


def test_processes_end_with_a_model_that_cannot_be_opened(tiny: Path) -> None:
    options = load_options(**TWO, speculate="mtp")
    begun = begin_processes(options)
    begun.start_error()
    with pytest.raises(UsageError, match="--speculate mtp"):
        open_ranks(ZSEReader(tiny), options, no_phases, cache_dir=None, processes=begun)
    assert begun.processes[0].returncode is not None


def test_the_thread_that_started_them_is_the_one_that_watches() -> None:
    """The kernel ends them with that thread."""
    begun = RankProcesses(["cpu", "cpu"])
    watching: list[str] = []
    begun.give_to(lambda: watching.append(threading.current_thread().name))
    begun.close()
    assert watching == ["zse-ranks"]


@pytest.mark.parametrize(
    ("devices", "shown"),
    [(["cuda:0", "cuda:1"], "alone"), (["cuda:0", "cuda:0"], "among-all")],
)
def test_processes_are_shown_their_own_gpu_and_the_environment_of_the_user(
    monkeypatch: pytest.MonkeyPatch, devices: list[str], shown: str
) -> None:
    """What this process's driver is told is in its environment as C sees it, for a moment."""
    name = "ZSE_TOLD_TO_A_DRIVER"
    code = f"import os, sys; found = sys.argv[3], os.environ.get({name!r}); "
    code += f"sys.exit(0 if found == ({shown!r}, None) else 9)"
    monkeypatch.setattr(processes, "_MAIN", code)
    os.putenv(name, "1")
    try:
        begun = RankProcesses(devices)
        begun.start_error()
        assert begun.processes[0].wait(60) == 0
        begun.close()
    finally:
        os.unsetenv(name)


def test_a_start_imports_little_before_its_ranks_begin() -> None:
    code = "import sys, zse.engine.ranks.processes; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"zse.models", "msgspec", "zse.format", "numpy"} & set(run.stdout.split())
