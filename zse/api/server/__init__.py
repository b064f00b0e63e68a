"""``run_server``: the server from Python instead of from a command line."""

from __future__ import annotations

from typing import Any

from zse.errors import UsageError
from zse.option import options_of, with_flags
from zse.serve.start import start
from zse.server_options import ServeOptions
from zse.settings import load_settings

__all__ = ["run_server"]


def run_server(
    host: str = "127.0.0.1", port: int = 8000, model: str | None = None, **options: Any
) -> int:
    """Serve until a signal; return the exit code. Call it from the main thread.

    Args:
        host: Address to bind. Other machines reach ``0.0.0.0``, and then a key is asked for.
        port: 0 takes a free one.
        model: What ``zse serve`` takes; None means what the environment and ``zse.toml`` say.
        options: More flags of ``zse serve``, by their names in ``zse.toml``.

    Raises:
        UsageError: There is no such option, or its value is out of range.
        BadSettingError: The environment or ``zse.toml`` has such a value.
    """
    if unknown := sorted(options.keys() - options_of(ServeOptions).keys()):
        raise UsageError(
            f"a server has no option {', '.join(unknown)}",
            hint="Options are called as in zse.toml: docs/reference/settings.md lists them.",
        )
    flags = {"host": host, "port": port, "model": model, **options}
    return start(with_flags(load_settings(), flags))
