"""The Debian packages that the real services come from, and how to install them.

python scripts/services/service_packages.py install    # as root; does nothing when all are there
python scripts/services/service_packages.py missing    # the packages that are not there, one a line
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# package -> a command it brings
S3_PACKAGES = {
    "radosgw": "radosgw",
    "ceph-mon": "ceph-mon",
    "ceph-osd": "ceph-osd",
    "ceph-common": "ceph",
    "ceph-base": "monmaptool",
}
IMAGE_PACKAGES = {
    "docker-registry": "docker-registry",
    "skopeo": "skopeo",
    "podman": "podman",
    "umoci": "umoci",
    "runc": "runc",
    "bubblewrap": "bwrap",
}
REDIS_PACKAGES = {"redis-server": "redis-server"}
BROWSER_PACKAGES = {"chromium": "chromium"}  # no service: tests of pages are skipped without it
ALL_PACKAGES = S3_PACKAGES | IMAGE_PACKAGES | REDIS_PACKAGES
# Services live in /usr/sbin, which is not on every user's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class ServiceError(RuntimeError):
    """A service cannot be installed or started; the text says why and what to do."""


def find_command(name: str) -> str:
    """Return the path of a command.

    Raises:
        ServiceError: It is not installed.
    """
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise ServiceError(
            f"{name} is not installed; as root on Debian run "
            "`python scripts/services/service_packages.py install`"
        )
    return path


def missing_packages(packages: dict[str, str] = ALL_PACKAGES) -> list[str]:
    """Return the packages whose command is not there."""
    return [p for p, command in packages.items() if not shutil.which(command, path=SEARCH_PATH)]


def cannot_install() -> str:
    """Return why packages cannot be installed here, or an empty string when they can."""
    if shutil.which("apt-get") is None:
        return "this is not a Debian system (no apt-get)"
    if os.geteuid() != 0:
        return "installing packages needs root"
    return ""


def install(packages: dict[str, str] = ALL_PACKAGES) -> list[str]:
    """Install what is missing; return the names. Nothing runs when all are there.

    Raises:
        ServiceError: Not root, not Debian, or apt-get failed (its last lines are in the text).
    """
    missing = missing_packages(packages)
    if not missing:
        return []
    if reason := cannot_install():
        raise ServiceError(f"missing packages: {' '.join(missing)}; {reason}")
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    # An index that is merely old may still hold every package, so its failure is not the end.
    _apt([*wait, "-qq", "update"], check=False)
    with _no_service_starts():
        _apt([*wait, "-qq", "-y", "--no-install-recommends", "install", *missing], check=True)
    if still_missing := missing_packages(packages):
        raise ServiceError(f"installed, but still not found: {' '.join(still_missing)}")
    return missing


class _no_service_starts:  # noqa: N801
    """Keeps maintainer scripts from starting the packages' own system services."""

    _policy = Path("/usr/sbin/policy-rc.d")

    def __enter__(self) -> None:
        self._ours = not self._policy.exists()
        if self._ours:
            self._policy.write_text("#!/bin/sh\nexit 101\n")
            self._policy.chmod(0o755)

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self._policy.unlink(missing_ok=True)


def _apt(arguments: list[str], *, check: bool) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", *arguments],
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if check and done.returncode:
        tail = "\n".join(done.stdout.strip().splitlines()[-8:])
        raise ServiceError(f"apt-get {' '.join(arguments)} failed:\n{tail}")


def main() -> int:
    action = sys.argv[1] if len(sys.argv) == 2 else ""
    if action == "missing":
        print("\n".join(missing_packages()))
        return 0
    if action != "install":
        print(__doc__, file=sys.stderr)
        return 2
    try:
        installed = install()
    except ServiceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"installed: {' '.join(installed) or 'nothing, all packages are there'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
