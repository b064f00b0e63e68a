"""The real server on the built-in model, whose device is lost in a step. A child process.

Started with a number of steps and one of sequences: so many steps after so many were in one. Until
then steps take their time, so that a machine on which a client begins late has its clients together.
"""

import sys
import time

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
    submit, left, awaited = runner.submit, int(sys.argv[1]), int(sys.argv[2])

    def submit_until_lost(batch):
        nonlocal left, awaited
        if len(batch.chunks) < awaited:
            time.sleep(0.05)
            return submit(batch)
        awaited = 0
        left -= 1
        if left < 0:
            raise DeviceError("the driver says: an illegal memory access was encountered")
        return submit(batch)

    runner.submit = submit_until_lost
    return loaded


if __name__ == "__main__":
    sys.exit(start(SETTINGS, load))
