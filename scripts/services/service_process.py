"""Background processes: pid, log and folder on disk, so that another command can stop them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from service_packages import ServiceError, find_command

LOOPBACK = "127.0.0.1"
# Children of this process: they have to be waited for. Another command's children are not here.
_children: dict[int, subprocess.Popen[bytes]] = {}


def free_ports(count: int) -> list[int]:
    """Return ports that nothing on loopback listens on right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind((LOOPBACK, 0))
        return [item.getsockname()[1] for item in sockets]


def spawn(folder: Path, name: str, command: list[str], *, die_with_parent: bool) -> None:
    """Start a process in the background; its output goes to NAME.log, its pid to NAME.pid.

    The folder must be among the arguments: ``stop_all`` recognises the process by it.
    """
    if die_with_parent:
        command = [find_command("setpriv"), "--pdeathsig", "KILL", *command]
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        )
    _children[process.pid] = process
    (folder / f"{name}.pid").write_text(str(process.pid))
    # For a moment after exec the kernel shows no arguments yet.
    while process.poll() is None and not _belongs_to(process.pid, folder):
        time.sleep(0.005)


def stop_all(folder: Path) -> None:
    """End every process that ``spawn`` started in this folder, and wait until it is gone."""
    for pid_file in sorted(folder.glob("*.pid")):
        pid = int(pid_file.read_text())
        if child := _children.pop(pid, None):
            child.kill()
            child.wait()
        elif _belongs_to(pid, folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while _is_running(pid):
                time.sleep(0.02)
        pid_file.unlink()


def wait_for_http(url: str, folder: Path, name: str, timeout_seconds: float = 180) -> None:
    """Return when the URL answers with any HTTP status.

    Raises:
        ServiceError: The process ended, or nothing answered in time; the log's end is in the text.
    """
    pid = int((folder / f"{name}.pid").read_text())
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            if not _belongs_to(pid, folder):
                break
            time.sleep(0.1)
    log = (folder / f"{name}.log").read_text(errors="replace")[-2000:]
    raise ServiceError(f"{name} did not answer at {url}; the end of its log:\n{log}")


def run_tool(command: list[str], timeout_seconds: float = 180) -> str:
    """Run a helper command to its end and return its standard output.

    Raises:
        ServiceError: It failed; its words are in the text.
    """
    command = [find_command(command[0]), *command[1:]]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"{' '.join(command)} took over {timeout_seconds} s") from error
    if done.returncode:
        raise ServiceError(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _belongs_to(pid: int, folder: Path) -> bool:
    """Whether the process lives and is one of this folder's, and not a reused number."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return os.fsencode(folder) in arguments  # a dead child that nobody reaped has no arguments


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
