"""A process that lends the weights of a file, which lie in the memory of the stub driver's GPU.

``python lending_process.py LIBCUDA FILE SECRET`` says that it lends, and does until its input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from zse.backends.gpu.lendable import lendable_of
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.library import Driver
from zse.format.reader import ZSEReader
from zse.stream.loader import begin_load, plan_load
from zse.stream.peers import lending
from zse.stream.peers.lending import Lender
from zse.stream.placement import WholeFile
from zse.stream.source import LocalSource


def main() -> None:
    library, path, secret = sys.argv[1:]
    lending.HANDSHAKE_SECONDS = 60.0  # on a machine that stands still for seconds
    with ZSEReader(path) as reader:
        header = reader.header.loaded()
    placement, source = WholeFile(header), LocalSource(Path(path))
    with Gpu.open(driver=Driver(library)) as gpu:
        block = gpu.allocate_shared(placement.length_bytes)
        begin_load(gpu, source, plan_load(source, placement), block.address).wait()
        lendable = lendable_of(gpu, header, block)
        assert lendable is not None
        lender = Lender(lendable, secret.encode(), lease_seconds=600)
        print("lends", flush=True)
        sys.stdin.read()
        lender.close()
    source.close()


if __name__ == "__main__":
    main()
