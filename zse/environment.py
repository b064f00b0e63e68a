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


_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NODES = "/dev"


class OneGpu:
    """Which GPU of several is the only one that the driver was shown; ``ordinal`` None for all."""

    ordinal: int | None = None


one_gpu = OneGpu()


def num_gpu_nodes(nodes: str = "") -> int:
    """Return how many GPUs the driver would look at, which takes it 0.2 s for each of them.

    0 where that is not known, or the user has said which ones are visible: that is what is wanted.
    """
    if _VISIBLE in os.environ:
        return 0
    try:
        found = os.listdir(nodes or _NODES)  # noqa: PTH208 - before there is a pathlib
    except OSError:
        return 0
    return sum(name[:6] == "nvidia" and name[6:].isdecimal() for name in found)


def show_one_gpu(ordinal: int) -> None:
    """Let the driver, which has not started, see one GPU; it keeps the number that it had.

    Only the driver is told: children of this process get what the user had. Call this before there
    is a second thread.
    """
    one_gpu.ordinal = ordinal
    os.putenv(_VISIBLE, str(ordinal))


def environment_of_children() -> dict[str, str]:
    """Return the environment as the user gave it, whatever the driver of this process is told."""
    return dict(os.environ)


def driver_has_started() -> None:
    """Take back what it was told: it has read that, and programs started from here would, too."""
    if one_gpu.ordinal is not None:
        os.unsetenv(_VISIBLE)


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
