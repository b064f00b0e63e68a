"""Runs one Python program where it can touch nothing: started by ``run.py`` as a script.

A program comes from a model, so it may do anything. With namespaces it has a root of its own, in
memory: the interpreter and system libraries to read, an empty folder to write, no network, no
other process to see; all of its processes end with the first. Where the kernel refuses that,
Landlock keeps it from files and from TCP; where that is absent too, only the limits hold, and root
runs nothing. Nothing of zse is imported: this file runs under ``python -I -S``.

    python -I -S jail.py '{"mode": "namespaces", "folder": ..., "program": ..., "limits": {...}}'
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

BROKEN = 97
"""Exit code where the walls cannot be built: the program never ran."""
_OUTSIDE_ID = 65534
"""Nobody: what a program that root starts runs as, for limits do not bind root."""
_INSIDE_ID = 1000
_NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""User, mounts, processes, network, System V queues, host name."""
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH, _AT_RECURSIVE, _AT_FDCWD = 2, 0x8000, -100
_MOUNT_ATTR_RDONLY_NOSUID = 1 | 2
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SYS_MOUNT_SETATTR = 442
_SYS_LANDLOCK = 444
"""Makes a set of rules; the next two numbers add one, and bind the process."""
_READ_FOLDER = 8
_READ = 1 | 4 | _READ_FOLDER
"""Landlock's kinds of access: run, read a file, list a folder."""
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LIBRARIES = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/dev/null")
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Read what is asked from the one argument, and become the program."""
    asked = json.loads(sys.argv[1])
    os.umask(0o022)
    folder, program, limits = Path(asked["folder"]), Path(asked["program"]), asked["limits"]
    if asked["mode"] == "namespaces":
        try:
            _enter_namespaces()
            _enter_root(folder, program, limits["disk_bytes"])
            _die_with_parent()
            _stay_as_first_process()
        except OSError as error:
            _refuse(str(error))
        become(Path("/work"), Path("/program.py"), limits, user_id=_INSIDE_ID)
    user_id = _OUTSIDE_ID if _nobody_may_read() else None
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if asked["mode"] == "landlock":
        try:
            _enter_landlock(folder, program)
        except OSError as error:
            _refuse(str(error))
    elif asked["mode"] != "limits" or (os.geteuid() == 0 and user_id is None):
        _refuse("nothing would hold it")
    become(folder, program, limits, user_id=user_id)


def become(folder: Path, program: Path, limits: Mapping[str, int], user_id: int | None) -> None:
    """Give up all rights, bind the limits, and turn into the program; never returns."""
    os.chdir(folder)
    if user_id is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_DATA, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["num_files"]),
        (resource.RLIMIT_NPROC, limits["num_processes"]),
    ):
        resource.setrlimit(name, (value, value))
    seconds = limits["cpu_seconds"]  # the first limit says why, the second cannot be caught
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    python = os.path.realpath(sys.executable)
    command = [python, "-I", "-S", "-B", "-X", "utf8", str(program)]
    os.execve(python, command, {"HOME": str(folder)})


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"jail: {why}\n")
    os._exit(BROKEN)


def _enter_namespaces() -> None:
    """Leave the machine's namespaces, with two users inside: one that builds, one that runs."""
    outer_id, group_id = os.geteuid(), os.getegid()
    if outer_id == 0:
        _mapped_by_root()
        return
    _check(_libc.unshare(_NEW_NAMESPACES))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_INSIDE_ID} {outer_id} 1")
    Path("/proc/self/gid_map").write_text(f"{_INSIDE_ID} {group_id} 1")


def _mapped_by_root() -> None:
    """Unshare while a child, which stays outside and keeps root's right to, writes who is who."""
    ready_out, ready_in = os.pipe()
    me = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(ready_in)
        begun = os.read(ready_out, 1)
        try:
            for name in ("uid_map", "gid_map") if begun else ():
                Path(f"/proc/{me}/{name}").write_text(f"0 0 1\n{_INSIDE_ID} {_OUTSIDE_ID} 1\n")
        except OSError:
            os._exit(1)
        os._exit(0)
    _check(_libc.unshare(_NEW_NAMESPACES))
    os.write(ready_in, b"1")
    if os.waitpid(helper, 0)[1]:
        raise OSError("user ids cannot be mapped")
    os.close(ready_out)
    os.close(ready_in)


def _enter_root(folder: Path, program: Path, disk_bytes: int) -> None:
    """Build a root in memory over ``folder``, enter it, and let go of the machine's own."""
    text = program.read_bytes()
    # Inside a program could make namespaces in which it has rights again; it is left none.
    with contextlib.suppress(OSError):
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    (folder / "program.py").write_bytes(text)
    for place in dict.fromkeys([*_LIBRARIES, os.path.realpath(sys.base_prefix)]):
        _show(Path(place), folder)
    work = folder / "work"
    work.mkdir()
    options = f"size={disk_bytes},nr_inodes=1000,mode=777"
    _mount("tmpfs", work, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    _mount("none", folder, None, flags)
    os.chdir(folder)
    _check(_libc.syscall(_SYS_PIVOT_ROOT[os.uname().machine], b".", b"."))
    _check(_libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _show(place: Path, root: Path) -> None:
    """Make a place of the machine readable in the root, at the same path."""
    inside = root / place.relative_to("/")
    if not place.exists() or inside.exists():
        return
    inside.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        inside.symlink_to(place.readlink())
        return
    if place.is_dir():
        inside.mkdir()
    else:
        inside.touch()
    _mount(str(place), inside, None, _MS_BIND | _MS_REC)
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY_NOSUID, 0, 0, 0)
    path, size = bytes(inside), ctypes.c_size_t(ctypes.sizeof(attributes))
    _check(_libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, attributes, size))


def _stay_as_first_process() -> None:
    """Fork twice: the caller goes on as the program; its parent is the namespace's process 1.

    When process 1 ends, by itself or with whoever started it, the kernel ends all others.
    """
    first = os.fork()
    if first:
        _end_as(os.waitpid(first, 0)[1])
    _die_with_parent()
    second = os.fork()
    if second:
        while (ended := os.wait())[0] != second:
            pass
        _end_as(ended[1])


def _enter_landlock(folder: Path, program: Path) -> None:
    """Leave the program the interpreter to read and its folder to write: of TCP, nothing.

    Each version of the kernel's interface knows more kinds of access; see landlock(7).
    """
    version = _check(_libc.syscall(_SYS_LANDLOCK, None, ctypes.c_size_t(0), 1))
    num_kinds = 13 + sum(version >= since for since in (2, 3, 5))
    everything = (1 << num_kinds) - 1
    fields = [everything, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]
    ruleset = (ctypes.c_uint64 * len(fields))(*fields)  # files, TCP, then signals and sockets
    size = ctypes.c_size_t(ctypes.sizeof(ruleset))
    rules = _check(_libc.syscall(_SYS_LANDLOCK, ruleset, size, 0))
    libraries = [Path(place) for place in (*_LIBRARIES, os.path.realpath(sys.base_prefix))]
    for place in (*libraries, program, folder):
        if not place.exists():
            continue
        kinds = _READ if place.is_dir() else _READ & ~_READ_FOLDER
        handle = os.open(place, os.O_PATH)
        beneath = _Beneath(everything if place == folder else kinds, handle)
        _check(_libc.syscall(_SYS_LANDLOCK + 1, rules, 1, ctypes.byref(beneath), 0))
        os.close(handle)
    _check(_libc.syscall(_SYS_LANDLOCK + 2, rules, 0))


class _Beneath(ctypes.Structure):
    """What a rule lets be done below a folder that is open."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("handle", ctypes.c_int32))


def _die_with_parent() -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _end_as(status: int) -> None:
    """End as a child did; a signal becomes 128 and its number, as in a shell."""
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _nobody_may_read() -> bool:
    """Whether root is who runs this, and the interpreter can be read by anybody."""
    places = Path(os.path.realpath(sys.base_prefix))
    return os.geteuid() == 0 and all(
        place.stat().st_mode & 0o005 == 0o005 for place in (places, *places.parents)
    )


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    words = (source.encode(), bytes(target), kind.encode() if kind else None)
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode()))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


if __name__ == "__main__":
    main()
