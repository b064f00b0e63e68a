"""Ways to start an unpacked image's own entry point in a root of its own, best first.

Each runner turns the image's config into a command. A runner counts as working when it can run the
image's Python for a moment; the first one that does is used. The last resort has no isolation: the
image's loader and Python run from the unpacked folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from zse.errors import ImageError, MissingDependencyError, UsageError
from zse.oci.image.unpacked import RunnerError, UnpackedImage, find, unpacked

PROBE = ("python3", "-I", "-S", "-c", "print('started')")
PROBE_SECONDS = 60


Runner = Callable[[UnpackedImage, list[str], dict[str, str]], list[str]]
"""Image, arguments in place of its entry point, variables -> a command."""


def docker(image: UnpackedImage, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Load the image into the Docker daemon; its entry point is replaced only for the probe."""
    program = find("docker")
    note = image.scratch / "docker-image"
    if not note.exists():
        _output([program, "info"])  # fails at once where no daemon answers
        archive = image.scratch / "docker.tar"
        _output(["tar", "-cf", str(archive), "-C", str(image.layout), "."])
        words = _output([program, "load", "-i", str(archive)])
        note.write_text(words.strip().rpartition(" ")[2])  # "Loaded image: NAME"
        archive.unlink()
    flags = [f"--env={name}={value}" for name, value in variables.items()]
    entry = [f"--entrypoint={arguments[0]}"] if arguments else []
    gpus = ["--gpus=all"] if image.binds else []
    base = [program, "run", "--rm", "--network=host", "--read-only", "--tmpfs=/tmp", *gpus]
    return [*base, *flags, *entry, note.read_text(), *arguments[1:]]


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise RunnerError(last)
    return done.stdout


def podman(image: UnpackedImage, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Run the layout's image with podman's own storage in the scratch folder."""
    program = find("podman")
    store = image.scratch / "podman"
    roots = [f"--root={store / 'root'}", f"--runroot={store / 'run'}", "--events-backend=none"]
    flags = [f"--env={name}={value}" for name, value in variables.items()]
    limits = ["--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
    entry = [f"--entrypoint={arguments[0]}"] if arguments else []
    command = [program, *roots, "--cgroup-manager=cgroupfs", "run", "--rm", "--network=host"]
    command += ["--read-only", *limits, *flags, *entry]
    for inside, outside in image.binds.items():
        command += [f"--volume={outside}:{inside}"]
    # podman takes a relative path that begins with a dot for the name of an image.
    command += [f"oci:{image.layout.absolute()}:{image.tag}", *arguments[1:]]
    if Path("/sys/fs/cgroup/cgroup.controllers").exists() or os.getuid() != 0:
        return command
    # Old or mixed cgroups: podman starts only where it sees a plain second version of them.
    view = "umount -R -l /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    return [find("unshare"), "--mount", "sh", "-c", f"{view} && exec {shlex.join(command)}"]


def runc(image: UnpackedImage, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Have runc start a bundle."""
    return [find("runc"), f"--root={image.scratch / 'runc'}", *_run(image, arguments, variables)]


def crun(image: UnpackedImage, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Have crun start a bundle: the same in C; it does without control groups."""
    options = [f"--root={image.scratch / 'crun'}", "--cgroup-manager=disabled"]
    return [find("crun"), *options, *_run(image, arguments, variables)]


def _run(image: UnpackedImage, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Write a bundle; return what any runtime is told to start it by."""
    bundle = image.scratch / f"bundle-{secrets.token_hex(4)}"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps(_spec_of(image, arguments, variables)))
    return ["run", f"--bundle={bundle}", f"zse-{secrets.token_hex(4)}"]


def _spec_of(
    image: UnpackedImage, arguments: list[str], variables: dict[str, str]
) -> dict[str, Any]:
    """Return what a runtime does: own mounts, processes and host name; the host's network."""
    user, group = _ids(str(image.config.get("User") or "0"))
    environment = image.environment(variables)
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {
            "destination": "/sys",  # a GPU's driver looks for its devices there
            "type": "sysfs",
            "source": "sysfs",
            "options": ["nosuid", "noexec", "nodev", "ro"],
        },
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "mode=755"],
        },
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]},
    ]
    for inside, outside in image.binds.items():
        mounts.append({"destination": inside, "source": outside, "options": ["bind"]})
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": user, "gid": group},
            "args": arguments or image.entrypoint,
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": image.config.get("WorkingDir") or "/",
            "noNewPrivileges": True,
        },
        "root": {"path": str(image.rootfs), "readonly": True},
        "hostname": "zse",
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
            # A device that is shown must also be allowed.
            "resources": {"devices": [{"allow": True, "access": "rwm"}]} if image.binds else {},
        },
    }


def _ids(user: str) -> tuple[int, int]:
    """Return the user and the group of ``UID[:GID]``."""
    name, _, group = user.partition(":")
    if not name.isdecimal() or not (group or name).isdecimal():
        raise RunnerError(f"the image's user {user!r} is a name, not a number")
    return int(name), int(group or name)


def bwrap(image: UnpackedImage, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Bubblewrap: works for ordinary users where user namespaces do."""
    command = [find("bwrap"), "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    command += ["--ro-bind", str(image.rootfs), "/", "--proc", "/proc", "--dev", "/dev"]
    command += ["--tmpfs", "/tmp", "--die-with-parent", "--chdir", "/", "--clearenv"]
    for inside, outside in image.binds.items():
        command += ["--dev-bind", outside, inside]
    for name, value in image.environment(variables).items():
        command += ["--setenv", name, value]
    return [*command, *(arguments or image.entrypoint)]


def unshare_chroot(
    image: UnpackedImage, arguments: list[str], variables: dict[str, str]
) -> list[str]:
    """Own mount namespace and root, with util-linux and coreutils alone.

    The shell and chroot replace themselves, so that a signal reaches the entry point.
    """
    is_root = os.getuid() == 0
    user = [f"--userspec={image.config['User']}"] if is_root and image.config.get("User") else []
    root = str(image.rootfs)
    environment = [f"{name}={value}" for name, value in image.environment(variables).items()]
    start = [find("env"), "-i", *environment, find("chroot"), *user, root]
    start += arguments or image.entrypoint
    mounts = [["mount", "--rbind", f"/{name}", f"{root}/{name}"] for name in ("dev", "proc")]
    for inside, outside in image.binds.items():
        if not inside.startswith("/dev/"):  # those are there already
            mounts.append(["touch", root + inside])
            mounts.append(["mount", "--bind", outside, root + inside])
    script = " && ".join([*(shlex.join(m) for m in mounts), f"exec {shlex.join(start)}"])
    flags = ["--mount"] if is_root else ["--mount", "--user", "--map-root-user"]
    return [find("unshare"), *flags, "sh", "-c", script]


RUNNERS: dict[str, Runner] = {
    "docker": docker,
    "podman": podman,
    "runc": runc,
    "crun": crun,
    "bwrap": bwrap,
    "unshare+chroot": unshare_chroot,
    "unpacked layers": unpacked,
}


def first_that_works(
    image: UnpackedImage, wanted: str, say: Callable[[str], None], order: Iterable[str] = ()
) -> str:
    """Return the name of the first runner that starts the image's Python.

    Args:
        image: What to start.
        wanted: The only one to try; empty tries several.
        say: Hears what was tried.
        order: Which ones to try; empty is all, best first.

    Raises:
        UsageError: There is no runner of the wanted name.
        RunnerError: None does.
    """
    if wanted and wanted not in RUNNERS:
        raise UsageError(
            f"there is no runner {wanted!r}", hint=f"Choose one of {', '.join(RUNNERS)}."
        )
    for name in [wanted] if wanted else (order or RUNNERS):
        reason = _refusal(image, name)
        say(f"    {name}: {f'no ({reason})' if reason else 'works'}")
        if not reason:
            return name
    raise RunnerError("nothing here can start the image")


def _refusal(image: UnpackedImage, name: str) -> str:
    """Return why a runner does not start anything, or nothing."""
    try:
        done = subprocess.run(
            RUNNERS[name](image, list(PROBE), {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, ImageError, MissingDependencyError) as error:
        return str(error) or type(error).__name__
    if done.returncode == 0 and "started" in done.stdout:
        return ""
    words = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
    return words[-1][:150]
