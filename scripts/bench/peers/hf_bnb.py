"""transformers with bitsandbytes NF4, quantized while it loads: the usual way to 4 bits.

The parent times the lines that a child process prints; there is no server in between, which is in
the peer's favour.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from peers.errors import PeerNotRunError

CHECKPOINT_LIMIT_BYTES = 40 << 30
CHILD = Path(__file__).with_name("hf_bnb_child.py")


def measure_hf_bnb(settings: dict, *, work: Path, repeat: int) -> dict:
    """Return medians of the start, decode speed and GPU memory.

    Raises:
        PeerNotRunError: A package is missing, or the checkpoint would be too large.
    """
    for package in ("torch", "transformers", "bitsandbytes", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise PeerNotRunError(f"{package} is not installed")
    from peers.make_hf import checkpoint_bytes, make_hf

    size_bytes = checkpoint_bytes(settings)
    if size_bytes > CHECKPOINT_LIMIT_BYTES:
        raise PeerNotRunError(f"its checkpoint would have {size_bytes / 1e9:.0f} GB")
    folder = work / f"{settings['hidden_size']}x{settings['num_hidden_layers']}-bf16"
    if not (folder / "config.json").is_file():
        make_hf(folder, settings)
    # Each start takes long and varies little: two after the one that warms the page cache.
    starts = [start_once(folder) for _ in range(min(repeat, 2) + 1)][1:]
    result: dict = {"model_bytes": size_bytes}
    for phase in ("imported", "loaded", "first_token"):
        values = [start[phase] * 1000 for start in starts]
        result[f"{phase}_ms_p50"] = round(statistics.median(values), 1)
        result[f"{phase}_ms_min"] = round(min(values), 1)
        result[f"{phase}_ms_max"] = round(max(values), 1)
    rates = [start["decode_tokens_per_second"] for start in starts]
    result["decode_tokens_per_second"] = round(statistics.median(rates), 1)
    result["gpu_bytes"] = int(max(start["gpu_bytes"] for start in starts))
    return result


def start_once(folder: Path) -> dict[str, float]:
    """Run the child once; return seconds from process start to each line, and its figures."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    seen: dict[str, float] = {}
    for line in child.stdout:
        word, _, rest = line.partition(" ")
        if word == "figures":
            seen |= json.loads(rest)
        elif word.strip() in ("imported", "loaded", "first_token"):
            seen[word.strip()] = time.perf_counter() - began
    _, errors = child.communicate()
    if child.returncode:
        raise PeerNotRunError(f"it ended with code {child.returncode}: {errors[-1500:]}")
    return seen
