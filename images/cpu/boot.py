"""The image's entry point: puts the two code folders on the path and starts the server.

Run with -I -S: no site module, no user folder, nothing from the environment's PYTHON variables.
"""

import os
import sys
import time

# The server's cold-start ledger counts from here.
os.environ.setdefault("ZSE_START_TIME_NS", str(time.time_ns()))  # noqa: TID251 - before zse exists
here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 10 ms here
sys.path[:0] = [f"{here}/app", f"{here}/site-packages"]
sys.argv[0] = "zse-serve"

if __name__ == "__main__":
    from zse.serve.__main__ import main

    sys.exit(main())
