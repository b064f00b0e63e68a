"""What of the environment cannot wait for the settings. A start begins here, with ``os`` alone."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # without importing ``typing``
if TYPE_CHECKING:
    from collections.abc import Sequence

GPU_QUEUES = "1"
"""Queues from this process to a GPU."""


def use_one_gpu_queue() -> None:
    """Tell the CUDA driver to make one queue instead of eight, unless the user says otherwise.

    The engine has one stream, and the driver makes a context in half of the time. Call this before
    there is a second thread: others read the environment in C.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", GPU_QUEUES)


def device_hint(arguments: Sequence[str]) -> str:
    """Return the device that a command line names, or else ``ZSE_DEVICE``; auto where neither does.

    ``zse.settings`` and the parser of the flags have the last word, and say what is wrong.
    """
    for place, word in enumerate(arguments):
        if word == "--device":
            return "".join(arguments[place + 1 : place + 2])
        if word.startswith("--device="):
            return word.removeprefix("--device=")
    return os.environ.get("ZSE_DEVICE", "auto")
