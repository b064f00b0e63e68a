"""The image's entry point: puts the two code folders on the path and starts the server.

Run with -I -S: no site module, no user folder, nothing from the environment's PYTHON variables.
"""

import os
import runpy
import sys
import time
import warnings

# The server's cold-start ledger counts from here.
os.environ.setdefault("ZSE_START_TIME_NS", str(time.time_ns()))  # noqa: TID251 - before zse exists
sys.path[:0] = ["/opt/zse/app", "/opt/zse/site-packages"]
sys.argv[0] = "zse-serve"
# torch says so when numpy is absent; nothing here uses it.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

if __name__ == "__main__":
    runpy.run_module("zse.serve", run_name="__main__", alter_sys=True)
