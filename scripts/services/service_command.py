"""What the scripts of the services share: their folder and their command line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import service_packages
from service_packages import ServiceError
from service_process import stop_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def empty_folder(folder: Path) -> Path:
    """Return the absolute path of a folder that is absent or empty.

    Raises:
        ServiceError: Something is in it.
    """
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ServiceError(f"{folder} is not empty")
    return folder


def stop_service(folder: Path, configuration: str) -> None:
    """End the service of ``folder`` and delete the folder.

    Raises:
        ServiceError: The folder lacks the configuration that the script writes.
    """
    folder = folder.absolute()
    if not (folder / configuration).is_file():
        raise ServiceError(f"{folder} holds no service of this script: no {configuration}")
    stop_all(folder)
    shutil.rmtree(folder)


def run_command(
    usage: str | None,
    packages: dict[str, str],
    start: Callable[[Path], Iterable[str]],
    stop: Callable[[Path], None],
) -> int:
    """Do what the command line says; return the exit code.

    Args:
        usage: Printed when the arguments are others.
        packages: For ``install``.
        start: Starts the service in a folder; returns the lines to print.
        stop: Ends it.
    """
    try:
        match sys.argv[1:]:
            case ["install"]:
                service_packages.install(packages)
            case ["start", folder]:
                for line in start(Path(folder)):
                    print(line)
            case ["stop", folder]:
                stop(Path(folder))
            case _:
                print(usage, file=sys.stderr)
                return 2
    except ServiceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
