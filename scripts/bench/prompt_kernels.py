"""Kernels of prompts and of wide batches at a 7B's shapes: compiled forms beside each other.

    python scripts/bench/prompt_kernels.py                  # builds a pack of the forms, times them
    python scripts/bench/prompt_kernels.py --only 'few|silu'

Products are held against torch's of the same bytes, attention over lines against the one over
pages. Needs torch with CUDA, triton and a few processors. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from machine import machine_facts
from prompt_attention import attention_forms, contexts, decodes
from prompt_products import elementwise, gated_products, product_forms, products

if TYPE_CHECKING:
    from collections.abc import Callable


class Report:
    """Figures by name, printed as they come, until the time is up."""

    def __init__(self, seconds: float, only: str) -> None:
        self.figures: dict[str, Any] = {}
        self._end, self._only = time.monotonic() + seconds, re.compile(only)

    def wants(self, name: str) -> bool:
        return self._only.search(name) is not None and time.monotonic() < self._end

    def part(self, name: str, work: Callable[[], dict[str, float]]) -> None:
        if not self.wants(name):
            return
        try:
            found = work()
        except Exception:  # noqa: BLE001 - a form that does not run is a result
            print(f"{name:70s} FAILED {traceback.format_exc(limit=-1)[-160:]!r}", flush=True)
            return
        text = "  ".join(f"{unit} {value:.4g}" for unit, value in found.items())
        print(f"{name:70s} {text}", flush=True)
        self.figures[name] = {unit: float(f"{value:.4g}") for unit, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--cache", type=Path, help="folder that keeps what is compiled")
    parser.add_argument("--only", default="", help="regular expression of the parts to run")
    options = parser.parse_args()
    import torch
    from gpu_timing import pack_launcher

    from zse.kernels.build.builder import build_pack
    from zse.kernels.targets import target_named

    capability = torch.cuda.get_device_capability()
    target = target_named(f"sm_{capability[0]}{capability[1]}")
    with tempfile.TemporaryDirectory() as folder:
        built = build_pack(
            target,
            list(dict.fromkeys([*product_forms(), *attention_forms()])),
            source_digest="bench",
            cache_dir=options.cache or Path(folder),
            keep_going=True,
        )
        path = Path(folder) / "forms.zkp"
        path.write_bytes(built.data)
        print(f"{len(built.kernels)} forms, {built.seconds:.0f} s, failed: {list(built.failed)}")
        launcher, report = pack_launcher(path), Report(options.seconds, options.only)
        contexts(launcher, report)
        decodes(launcher, report)
        gated_products(launcher, report)
        elementwise(launcher, report)
        products(launcher, report)
    print(json.dumps({"benchmark": "prompt kernels", **machine_facts(), **report.figures}))


if __name__ == "__main__":
    main()
