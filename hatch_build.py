"""Puts the processors' kernels into a wheel: compiled for every set of instructions zse knows.

One wheel serves all architectures. A checkout, which an editable install is, gets no library here:
it builds those that it uses when they are first used, and again when a source changed.
"""

from __future__ import annotations

import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles before files are collected; the libraries are ignored by git, and named here."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from zse.kernels.native.build import build
        from zse.kernels.native.build_loader import build_loader
        from zse.kernels.native.sources import KERNELS

        for path in (*build(), *build_loader()):
            name = path.relative_to(KERNELS.parent).as_posix()
            build_data["force_include"][str(path)] = f"zse/{name}"
