"""Programs that mean harm: none gets at the machine, and all of them end."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zse.errors import ZSEError
from zse.evaluate.sandbox.run import Limits, run_program, strongest_mode
from zse.units import MIB

if TYPE_CHECKING:
    from zse.evaluate.sandbox.run import Mode, Verdict

LIMITS = Limits(seconds=30.0, cpu_seconds=1, memory_bytes=128 * MIB)
SECRET = "zse-secret-of-the-parent"
MODES = ("namespaces", "landlock")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    if MODES.index(request.param) < MODES.index(strongest_mode()):
        pytest.skip(f"this kernel has no {request.param}")
    return request.param


@pytest.fixture
def walls() -> None:
    if strongest_mode() != "namespaces":
        pytest.skip("this kernel gives no namespaces")


def ran(text: str, mode: Mode | None = None, limits: Limits = LIMITS) -> Verdict:
    return run_program(text, limits, mode)


def test_a_program_that_goes_through_passes(mode: Mode) -> None:
    assert ran("assert sum([1, 2]) == 3", mode).outcome == "passed"


@pytest.mark.parametrize(
    "text",
    ["exit(0)", "import os; os._exit(0)", "quit()", "raise SystemExit", "assert False", "def f(:"],
)
def test_a_program_that_leaves_before_its_end_does_not_pass(text: str) -> None:
    assert ran(text).outcome == "failed"


def test_a_program_that_never_ends_is_ended(mode: Mode) -> None:
    assert ran("while True: pass", mode).outcome == "time"


def test_a_program_that_sleeps_is_ended_by_the_clock() -> None:
    limits = Limits(seconds=0.8)
    assert ran("import time; time.sleep(60)", limits=limits).outcome == "time"


def test_endless_output_is_cut_off(mode: Mode) -> None:
    verdict = ran("while True: print('x' * 1000)", mode)
    assert verdict.outcome == "output"
    assert len(verdict.output) <= 2000


def test_memory_is_bounded(mode: Mode) -> None:
    verdict = ran("x = bytearray(1 << 30)", mode)
    assert verdict.outcome == "failed"
    assert "MemoryError" in verdict.output


@pytest.mark.usefixtures("walls")
def test_a_fork_bomb_ends_and_nothing_of_it_stays() -> None:
    text = """
import os, time
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        time.sleep(0.3)
        open("/proc/none")
"""
    before = children()
    assert ran(text).outcome in ("failed", "time")
    assert children() == before


@pytest.mark.usefixtures("walls")
def test_a_process_that_leaves_its_session_ends_with_the_program() -> None:
    text = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(__import__("sys").executable, ["zse-left-over", "-c", "import time; time.sleep(99)"])
"""
    assert ran(text).outcome == "passed"
    assert "zse-left-over" not in command_lines()


@pytest.mark.usefixtures("walls")
def test_threads_are_bounded() -> None:
    text = "import threading, time\nfor _ in range(50): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    assert "can't start new thread" in ran(text).output


def test_the_environment_is_not_inherited(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZSE_API_KEYS", SECRET)
    text = "import os; print(dict(os.environ)); assert set(os.environ) <= {'HOME', 'LC_CTYPE'}"
    assert ran(text, mode).outcome == "passed"


def test_the_environment_and_memory_of_the_parent_cannot_be_read(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()
    for name in ("environ", "mem", "cmdline", "maps"):
        text = f"print(open('/proc/{parent}/{name}', 'rb').read(100)); print('was ' + 'read')"
        verdict = ran(text, mode)
        assert verdict.outcome == "failed"
        assert "was read" not in verdict.output


def test_open_files_are_not_inherited(mode: Mode, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    with path.open() as file:
        os.set_inheritable(file.fileno(), True)
        text = """
import os
for descriptor in range(3, 64):
    try:
        os.fstat(descriptor)
    except OSError:
        continue
    raise SystemExit(descriptor)
"""
        assert ran(text, mode).outcome == "passed"


def test_the_parent_cannot_be_sent_a_signal(mode: Mode) -> None:
    verdict = ran(f"import os; os.kill({os.getpid()}, 0)", mode)
    assert verdict.outcome == "failed"
    assert "ProcessLookupError" in verdict.output or "PermissionError" in verdict.output


@pytest.mark.usefixtures("walls")
def test_killing_everybody_reaches_nobody_outside() -> None:
    assert ran("import os; os.kill(-1, 9); os.kill(-1, 9)").outcome == "failed"


def test_nothing_is_written_outside(mode: Mode, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for place in (tmp_path / "new", "/etc/zse-new", "/tmp/zse-new", "/dev/shm/zse-new"):
        ran(f"open({str(place)!r}, 'w').write('x')", mode)
        assert not os.path.lexists(place)


def test_files_of_the_machine_are_not_there_to_read(mode: Mode, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "key").write_text(SECRET)
    text = f"print(open({str(tmp_path / 'key')!r}).read())"
    verdict = ran(text, mode)
    assert verdict.outcome == "failed"
    assert SECRET not in verdict.output


def test_a_symlink_leads_nowhere_outside(mode: Mode, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("whole")
    target.chmod(0o666)
    text = f"import os; os.symlink({str(target)!r}, 'link'); open('link', 'w').write('broken')"
    assert ran(text, mode).outcome == "failed"
    assert target.read_text() == "whole"


def test_there_is_no_network(mode: Mode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = f"import socket; socket.create_connection({server.getsockname()}, 1)"
        assert ran(text, mode).outcome == "failed"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.usefixtures("walls")
def test_rights_cannot_be_gained_anew() -> None:
    text = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000) == -1, "user namespace"
assert libc.mount(b"tmpfs", b"/work", b"tmpfs", 0, None) == -1, "mount"
assert libc.setuid(0) == -1, "root"
"""
    assert ran(text).outcome == "passed", ran(text).output


@pytest.mark.usefixtures("walls")
def test_its_folder_is_empty_its_home_and_bounded() -> None:
    text = """
import os
assert os.getcwd() == os.environ["HOME"] and os.listdir() == []
try:
    for number in range(10_000):
        open(str(number), "wb").write(bytes(1 << 20))
except OSError as error:
    assert number < 20 and error.errno == 28, (number, error)
else:
    raise AssertionError("no bound")
"""
    verdict = ran(text)
    assert verdict.outcome == "passed", verdict.output


def test_a_text_that_breaks_compilers_is_only_read_there() -> None:
    assert ran("(" * 20_000).outcome == "failed"


def test_an_unknown_way_of_holding_is_no_way_to_run() -> None:
    with pytest.raises(ZSEError, match="cannot be made"):
        run_program("print('ran')", LIMITS, "none")  # type: ignore[arg-type]


def children() -> set[str]:
    task = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return set(task.read_text().split())


def command_lines() -> str:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(place.read_text())
        except OSError:
            continue
    return "\n".join(found)
