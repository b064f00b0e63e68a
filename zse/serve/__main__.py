"""``python -m zse.serve``: the entry point of images.

What a start waits for longest is the driver of a GPU, which needs nothing of Python. So it begins
before anything is imported, even what reads the settings.
"""

from __future__ import annotations

import sys

from zse.device.early import wake_driver

TYPE_CHECKING = False  # without importing ``typing``
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    wake_driver(given)
    from zse.start_pack import use_pack

    use_pack()
    from zse.serve.command_line import run

    return run(given)


if __name__ == "__main__":
    sys.exit(main())
