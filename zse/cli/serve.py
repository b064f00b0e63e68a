"""``zse serve``: the server with flags; the same boot as ``python -m zse.serve``."""

from __future__ import annotations

from typing import Any

from zse.cli.app import App
from zse.cli.parameters import OptionalModel
from zse.cli.table_flags import with_flags_of
from zse.option import options_of, with_flags
from zse.server_options import ServeOptions
from zse.settings import load_settings

_FLAGS = [key for key, row in options_of(ServeOptions).items() if row.by_hand and key != "model"]

app = App()


@app.command("serve")
@with_flags_of(_FLAGS)
def command(*, model: OptionalModel = None, given: dict[str, Any]) -> int:
    """Serve MODEL over HTTP; without one, the model that ZSE_MODEL names, else the built-in one.

    The port answers at once: /health/live is 200 from the beginning, /health/ready when the
    model is loaded. Logs go to
    stderr: words on a terminal, JSON lines elsewhere. Ctrl-C and SIGTERM let running answers end
    first.
    """
    from zse.serve.start import start

    return start(with_flags(load_settings(), {"model": model, **given}))
