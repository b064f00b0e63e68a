"""Errors of every form of a matrix product on the GPU at hand, and times of prefill.

Parts of ``kernels.py``; needs torch with CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from gpu_timing import graph_us
from kernel_cases import SHAPES, error_of, make_case, make_inputs, relative_error
from kernel_variants import matmul_sweep

from zse.kernels.linear.launch import linear_prefill
from zse.kernels.linear.plan import forms_for, steps_of
from zse.kernels.linear.variants import COMMON_FORMATS, OTHER_FORMATS
from zse.kernels.linear.weight import PLAIN_SCHEMES

if TYPE_CHECKING:
    from kernels import Report

    from zse.kernels.launcher import Launcher


def check(launcher: Launcher, report: Report) -> None:
    """Print the largest error of each form that a pack holds."""

    for scheme, group in (*COMMON_FORMATS, *OTHER_FORMATS):
        case = make_case(scheme, group, 1408, 1000)
        errors: dict[str, float] = {}
        for rows in (1, 2, 4, 7, 16, 30, 64, 100):
            for quantized in (False,) if scheme in PLAIN_SCHEMES else (False, True):
                for variant in forms_for(case.matrix.weight, rows, quantized=quantized):
                    room = case.outputs.numel() // (rows * case.matrix.weight.rows)
                    most = max(1, min(3, room, steps_of(variant, case.matrix.weight) // 2))
                    for splits in {1, most}:
                        error = error_of(launcher, case, variant, rows, splits)
                        limit = 1e-2 if not quantized else 2e-3
                        if not error <= limit:
                            report.failed = True
                            print("WRONG", error, rows, splits, variant.key, flush=True)
                        errors[variant.key] = max(errors.get(variant.key, 0.0), error)
        print(f"{scheme} {group}: {len(errors)} forms, largest error {max(errors.values()):.1e}")
        report.add(scheme=scheme, group=group, relative_errors=errors)


def prefill(
    launcher: Launcher, report: Report, tokens: int = 2048, columns: int = 3584, wide: int = 37888
) -> None:
    """Time the 16-bit product's forms, then whole products with their widening."""
    matmuls(launcher, report, tokens, columns, wide // 2, "bf16")
    matmuls(launcher, report, tokens, wide // 2, columns, "fp32")
    for scheme, group, name, output in (
        ("int4", 128, "gate_up", "bf16"),
        ("int4", 128, "down", "fp32"),
        ("int4", 128, "qkv", "fp32"),
        ("int8", 0, "o", "fp32"),
    ):
        widened(launcher, report, tokens, scheme, group, name, output)


def matmuls(
    launcher: Launcher, report: Report, tokens: int, columns: int, n: int, output: str
) -> None:
    """Time the forms of the 16-bit product beside cuBLAS."""

    x = torch.randn(tokens, columns, device="cuda").bfloat16()
    w = torch.randn(n, columns, device="cuda").bfloat16()
    dtype = torch.bfloat16 if output == "bf16" else torch.float32
    out = torch.empty(tokens, n, device="cuda", dtype=dtype)
    wanted = (x.float() @ w.float().T).double()
    flops = 2 * tokens * n * columns
    for variant in matmul_sweep(output):
        constants = dict(variant.constants)
        tiles = -(-tokens // constants["BM"]) * -(-n // constants["BN"])
        if variant.kernel.function == "matmul_stream":
            tiles = min(tiles, launcher.device.multiprocessors)
        steps = columns // constants["BK"]

        def call(variant=variant, tiles=tiles, steps=steps):
            launcher.launch(
                variant,
                (tiles, 1, 1),
                *(t.data_ptr() for t in (x, w, out)),
                *(tokens, n // 16, steps, n // 16),
            )

        try:
            out.fill_(float("nan"))
            call()
            error = relative_error(out, wanted)
            us = graph_us([call])
        except Exception as failure:  # noqa: BLE001
            print("FAILED", variant.key, str(failure)[:300], flush=True)
            continue
        rate = flops / us / 1e6
        report.add(variant=variant.key, tflops=round(rate, 1), relative_error=error)
        print(
            f"matmul {columns}x{n} {us:8.1f} us {rate:6.1f} TFLOP/s error {error:.1e} "
            f"{variant.key}",
            flush=True,
        )
    halved = out.bfloat16()
    us = graph_us([lambda: torch.matmul(x, w.T, out=halved)])
    print(f"cuBLAS {us:8.1f} us {flops / us / 1e6:6.1f} TFLOP/s", flush=True)
    report.add(variant="cublas", tflops=round(flops / us / 1e6, 1))


def widened(
    launcher: Launcher, report: Report, tokens: int, scheme: str, group: int, name: str, output: str
) -> None:
    """Time a product with its widening, by the size of the scratch memory."""

    columns, rows = SHAPES["7b"][name]
    case = make_case(scheme, group, columns, rows)
    inputs = make_inputs(tokens, columns, quantized=False, device="cuda")
    dtype = torch.bfloat16 if output == "bf16" else torch.float32
    result = torch.empty(tokens, rows, device="cuda", dtype=dtype)
    for mib in (16, 32, 48, 64, 128, 300):
        scratch = torch.empty(mib << 20, device="cuda", dtype=torch.uint8)

        def call(weight=case.weights[0], scratch=scratch, result=result, inputs=inputs):
            linear_prefill(
                launcher,
                weight,
                inputs.activation,
                result.data_ptr(),
                output,
                scratch.data_ptr(),
                scratch.numel(),
            )

        call()
        error = relative_error(result[:64], inputs.exact[:64] @ case.matrix.exact.T)
        us = graph_us([call], replays=3)
        rate = 2 * tokens * rows * columns / us / 1e6
        report.add(prefill=f"{scheme} {columns}x{rows}", scratch_mib=mib, tflops=round(rate, 1))
        print(
            f"prefill {scheme} {columns}x{rows} {output} scratch {mib} MiB {us:8.1f} us "
            f"{rate:6.1f} TFLOP/s error {error:.1e}",
            flush=True,
        )
