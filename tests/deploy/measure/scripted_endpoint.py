"""The scripted server on the port of the environment, ready after LOAD_SECONDS."""

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3] / folder) for folder in ("tests/serve", ".")]

from scripted_server import scripted_model  # noqa: E402

from zse.serve.start import start  # noqa: E402
from zse.server_options import ServeOptions  # noqa: E402
from zse.settings import Settings  # noqa: E402


def load(state):
    time.sleep(float(os.environ.get("LOAD_SECONDS", "0")))
    return scripted_model()


if __name__ == "__main__":
    options = ServeOptions(model="scripted", port=int(os.environ["PORT"]), drain_seconds=1)
    with tempfile.TemporaryDirectory() as home:  # whose audit log is nobody's
        sys.exit(start(Settings(serve=options, home=Path(home)), load))
