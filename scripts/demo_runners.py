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
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBE = ["python3", "-I", "-S", "-c", "print('started')"]
PROBE_SECONDS = 60
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image on disk: its layout, its unpacked root file system, and its config document."""

    layout: Path
    tag: str
    rootfs: Path
    config: dict[str, Any]
    scratch: Path

    @property
    def entrypoint(self) -> list[str]:
        return [*self.config.get("Entrypoint", []), *self.config.get("Cmd", [])]

    def environment(self, extra: dict[str, str]) -> dict[str, str]:
        own = dict(item.split("=", 1) for item in self.config.get("Env", []))
        return {**own, **extra}


Runner = Callable[[Image, list[str], dict[str, str]], list[str]]


def find(name: str) -> str:
    """Return the path of a program.

    Raises:
        FileNotFoundError: It is not installed.
    """
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def docker(image: Image, arguments: list[str], variables: dict[str, str]) -> list[str]:
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
    base = [program, "run", "--rm", "--network=host", "--read-only", "--tmpfs=/tmp", *flags, *entry]
    return [*base, note.read_text(), *arguments[1:]]


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise OSError(last)
    return done.stdout


def podman(image: Image, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Run the layout's image with podman's own storage in the scratch folder."""
    program = find("podman")
    store = image.scratch / "podman"
    roots = [f"--root={store / 'root'}", f"--runroot={store / 'run'}", "--events-backend=none"]
    flags = [f"--env={name}={value}" for name, value in variables.items()]
    limits = ["--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
    entry = [f"--entrypoint={arguments[0]}"] if arguments else []
    command = [program, *roots, "--cgroup-manager=cgroupfs", "run", "--rm", "--network=host"]
    command += ["--read-only", *limits, *flags, *entry, f"oci:{image.layout}:{image.tag}"]
    command += arguments[1:]
    if Path("/sys/fs/cgroup/cgroup.controllers").exists() or os.getuid() != 0:
        return command
    # Old or mixed cgroups: podman starts only where it sees a plain second version of them.
    view = "umount -R -l /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    return [find("unshare"), "--mount", "sh", "-c", f"{view} && exec {shlex.join(command)}"]


def runc(image: Image, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Write a runtime bundle: own mounts, processes and host name; the host's network."""
    program = find("runc")
    user, _, group = str(image.config.get("User") or "0").partition(":")
    environment = image.environment(variables)
    spec = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": int(user), "gid": int(group or user)},
            "args": arguments or image.entrypoint,
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": image.config.get("WorkingDir") or "/",
            "noNewPrivileges": True,
        },
        "root": {"path": str(image.rootfs), "readonly": True},
        "hostname": "zse",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "mode=755"],
            },
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
        },
    }
    bundle = image.scratch / f"bundle-{secrets.token_hex(4)}"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps(spec))
    state = f"--root={image.scratch / 'runc'}"
    return [program, state, "run", f"--bundle={bundle}", f"zse-demo-{secrets.token_hex(4)}"]


def bwrap(image: Image, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Bubblewrap: works for ordinary users where user namespaces do."""
    command = [find("bwrap"), "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    command += ["--ro-bind", str(image.rootfs), "/", "--proc", "/proc", "--dev", "/dev"]
    command += ["--tmpfs", "/tmp", "--die-with-parent", "--chdir", "/", "--clearenv"]
    for name, value in image.environment(variables).items():
        command += ["--setenv", name, value]
    return [*command, *(arguments or image.entrypoint)]


def unshare_chroot(image: Image, arguments: list[str], variables: dict[str, str]) -> list[str]:
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
    script = " && ".join([*(shlex.join(m) for m in mounts), f"exec {shlex.join(start)}"])
    flags = ["--mount"] if is_root else ["--mount", "--user", "--map-root-user"]
    return [find("unshare"), *flags, "sh", "-c", script]


def unpacked(image: Image, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """No isolation: the image's own loader, libraries and Python, from the unpacked folder."""
    root = image.rootfs
    inner = [root / "usr/bin/python3" if a == "python3" else _inside(root, a) for a in
             (arguments or image.entrypoint)]  # fmt: skip
    environment = {
        name: str(_inside(root, value)) for name, value in image.environment(variables).items()
    }
    libraries = f"{root}/usr/lib/x86_64-linux-gnu"
    loader = [f"{root}/usr/lib64/ld-linux-x86-64.so.2", "--library-path", libraries]
    pairs = [f"{name}={value}" for name, value in environment.items()]
    return [find("env"), "-i", *pairs, *loader, "--argv0", str(inner[0]), *map(str, inner)]


def _inside(root: Path, text: str) -> Path | str:
    """Turn an absolute path of the image into one of this machine."""
    path = root / text.lstrip("/")
    return path if text.startswith("/") and path.exists() else text


RUNNERS: dict[str, Runner] = {
    "docker": docker,
    "podman": podman,
    "runc": runc,
    "bwrap": bwrap,
    "unshare+chroot": unshare_chroot,
    "unpacked layers": unpacked,
}


def first_that_works(image: Image, wanted: str, say: Callable[[str], None]) -> str:
    """Return the name of the first runner that starts the image's Python.

    Raises:
        RuntimeError: None does.
    """
    for name in [wanted] if wanted else RUNNERS:
        try:
            command = RUNNERS[name](image, PROBE, {})
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=PROBE_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            say(f"    {name}: no ({error})")
            continue
        if done.returncode == 0 and "started" in done.stdout:
            say(f"    {name}: works")
            return name
        reason = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
        say(f"    {name}: no ({reason[-1][:150]})")
    raise RuntimeError("nothing here can start the image")
