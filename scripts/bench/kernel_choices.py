"""Times every form of matrix products as `zse kernels tune` does and keeps all the times.

    python scripts/bench/kernel_choices.py --pack sm_90.zkp --out times.jsonl --seconds 60

One JSON line a plan: table, shape, variant, splits, microseconds with what the reader pays. The
shapes and numbers of tokens that matter most come first; it stops when the time is up.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from typing import TYPE_CHECKING  # noqa: E402

from zse.cli.kernels_tune import SHAPES, Bench  # noqa: E402
from zse.device.cuda.gpu import Gpu  # noqa: E402
from zse.kernels.linear.plan import table_name  # noqa: E402
from zse.kernels.pack import KernelPack  # noqa: E402

if TYPE_CHECKING:
    from zse.kernels.layout import Activation
    from zse.kernels.linear.plan import LinearPlan
    from zse.kernels.linear.weight import LinearWeight

HEAD = (3584, 152064)
LAYERS = tuple(shape for shape in SHAPES if shape != HEAD)
SEVEN = LAYERS[:4]
ROUNDS = (
    ("int4", SEVEN, (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    ("int4", LAYERS[4:], (1,)),
    ("int8", (HEAD, (5120, 152064), (8192, 152064), (4096, 128256)), (1, 2, 4, 8, 16, 64)),
    ("int4", LAYERS[4:], (2, 4, 8, 16, 32, 64)),
    ("nf4", SEVEN, (1, 4, 8, 16, 64)),
    ("int8", SEVEN, (1, 4, 8, 16, 64)),
    ("bf16", SEVEN, (1, 4, 8, 16, 64)),
    ("int4", LAYERS[4:], (128, 256)),
)


class Recorder(Bench):
    """Writes down every time."""

    def write_to(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def _seconds(
        self, weights: list[LinearWeight], inputs: Activation, outputs: int, plan: LinearPlan
    ) -> float:
        seconds = super()._seconds(weights, inputs, outputs, plan)
        quantized = any(argument.name == "codes" for argument in plan.variant.arguments)
        row = {
            "table": table_name(weights[0], plan.rows, quantized=quantized),
            "shape": f"{weights[0].columns}x{weights[0].rows}",
            "variant": plan.variant.key,
            "splits": plan.splits,
            "microseconds": round(seconds * 1e6, 2),
        }
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    with Gpu.open(0) as gpu:
        bench = Recorder(gpu, KernelPack.open(options.pack), repeats=3)
        bench.write_to(options.out)
        for scheme, shapes, tokens in ROUNDS:
            for columns, rows in shapes:
                for count in tokens:
                    if time.monotonic() > end:
                        return
                    for timing in bench.measure(scheme, columns, rows, (count,)):
                        print(
                            f"{timing.table:30} {timing.shape:>12} "
                            f"{timing.best_seconds * 1e6:9.2f} us splits {timing.best.splits:2} "
                            f"{timing.best.variant.key} "
                            f"planner {timing.planned_seconds / timing.best_seconds:.2f}",
                            flush=True,
                        )
        bench.close()


if __name__ == "__main__":
    main()
