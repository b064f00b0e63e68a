# ruff: noqa: N803 - constants of a kernel are written as constants
"""Two small kernels that the builder's tests compile."""

import triton
import triton.language as tl


@triton.jit
def scale(
    inputs, outputs, length, factor, BLOCK: tl.constexpr, PDL: tl.constexpr, PLAIN: tl.constexpr
):
    """Store inputs times factor, float32 [length]."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < length
    values = tl.load(inputs + offsets, mask=inside)
    if PLAIN:
        tl.device_assert(False)
    tl.store(outputs + offsets, values * factor, mask=inside)


@triton.jit
def product(left, right, outputs, BLOCK: tl.constexpr):
    """Store left @ right, float32 [BLOCK, BLOCK] of bfloat16: needs shared memory."""
    rows = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    a = tl.load(left + rows * BLOCK + columns)
    b = tl.load(right + rows * BLOCK + columns)
    tl.store(outputs + rows * BLOCK + columns, tl.dot(a, b))
