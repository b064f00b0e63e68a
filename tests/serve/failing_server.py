"""The real server on the built-in model, whose device is lost at a given step. A child process."""

import sys

from zse.errors import DeviceError
from zse.option import with_flags
from zse.serve.head_start import HeadStart
from zse.serve.load import load_served_model
from zse.serve.start import start
from zse.settings import load_settings

SETTINGS = with_flags(load_settings(), {"model": "tiny", "device": "cpu", "port": 0})


def load(state):
    loaded = load_served_model(SETTINGS, state.progress, HeadStart(SETTINGS))
    runner = loaded.engine._core.runner
    submit, left = runner.submit, int(sys.argv[1])

    def submit_until_lost(batch):
        nonlocal left
        left -= 1
        if left < 0:
            raise DeviceError("the driver says: an illegal memory access was encountered")
        return submit(batch)

    runner.submit = submit_until_lost
    return loaded


if __name__ == "__main__":
    sys.exit(start(SETTINGS, load))
