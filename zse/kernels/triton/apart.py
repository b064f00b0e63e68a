"""Parts that kernels in the language below Triton share, in which warps have tasks of their own."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl  # noqa: TC002 - as in other kernels
from triton.language.extra import cuda


@gluon.jit
def wait_for_inputs(PDL: gl.constexpr):
    """Where kernels overlap, let the next one start, and wait for what the one before wrote."""
    if PDL:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
