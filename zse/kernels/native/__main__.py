"""Compiles libraries in a checkout: ``scripts/kernels [ARCHITECTURE ...]``."""

from __future__ import annotations

import sys

from zse.device.processor import architecture
from zse.errors import UsageError
from zse.kernels.native.build import build
from zse.kernels.native.build_loader import PROCESSORS, build_loader
from zse.kernels.native.instructions import ALL, of_architecture
from zse.kernels.native.library import runnable


def main(architectures: list[str]) -> None:
    known = sorted({one.architecture for one in ALL})
    for name in architectures:
        if name not in known:
            raise UsageError(f"unknown architecture {name!r}", hint=f"Use {' or '.join(known)}.")
    wanted = [one for name in architectures for one in of_architecture(name)]
    loaders = [one for one in architectures or [architecture()] if one in PROCESSORS]
    for path in (*build(wanted or runnable()[:1]), *build_loader(loaders)):
        sys.stdout.write(f"{path}\n")


main(sys.argv[1:])
