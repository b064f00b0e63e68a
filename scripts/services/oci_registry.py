"""A real image registry on loopback (docker-registry, the reference implementation), plain HTTP.

    python scripts/services/oci_registry.py install    # Debian packages, as root
    python scripts/services/oci_registry.py start DIR  # prints its address, as 127.0.0.1:41234
    python scripts/services/oci_registry.py stop DIR   # ends the process and deletes DIR

DIR must not exist or be empty; images are stored below it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from service_command import empty_folder, run_command, stop_service
from service_packages import IMAGE_PACKAGES, find_command
from service_process import LOOPBACK, free_ports, spawn, stop_all, wait_for_http

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIGURATION = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {folder}/images}}
  delete: {{enabled: true}}
http: {{addr: "{address}"}}
{auth}"""


def start(folder: Path, *, auth: str = "", die_with_parent: bool = False) -> str:
    """Start an empty registry whose state is in ``folder``; return ``host:port``.

    ``auth`` is the ``auth:`` section of its configuration; without it anybody may do anything.

    Raises:
        ServiceError: The package is missing, the folder is in use, or the process did not come up.
    """
    folder = empty_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    configuration = folder / "registry.yml"
    configuration.write_text(CONFIGURATION.format(folder=folder, address=address, auth=auth))
    command = [find_command("docker-registry"), "serve", str(configuration)]
    try:
        spawn(folder, "registry", command, die_with_parent=die_with_parent)
        wait_for_http(f"http://{address}/v2/", folder, "registry")
    except BaseException:
        stop_all(folder)
        raise
    return address


def stop(folder: Path) -> None:
    """End the registry of ``folder`` and delete the folder.

    Raises:
        ServiceError: The folder holds no registry of this script.
    """
    stop_service(folder, "registry.yml")


@contextlib.contextmanager
def running(folder: Path, *, auth: str = "") -> Iterator[str]:
    """Run a registry for the length of a block; it also ends when this process is killed."""
    address = start(folder, auth=auth, die_with_parent=True)
    try:
        yield address
    finally:
        stop(folder)


if __name__ == "__main__":
    sys.exit(run_command(__doc__, IMAGE_PACKAGES, lambda folder: [start(folder)], stop))
