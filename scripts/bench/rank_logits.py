"""Whether several GPUs answer as one does: logits of the same texts, and tokens that differ.

    scripts/bench/rank_logits.py MODEL.zse --ranks 1,2 [--tokens 256] [--deterministic]

The first number of ranks writes a greedy text behind each prompt and is asked for the logits of all
of it; the others are asked for those of the same text. A token that differs is a near-tie where the
first one's two likeliest logits lie closer together than twice what rounding changes anywhere.
Prints a line for each number of ranks, the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any

from engine_runs import whole_numbers
from machine import machine_facts

from zse.engine.meter import random_prompts
from zse.option import with_values
from zse.settings import load_settings

PROMPT_TOKENS, TEXTS = 64, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gpus", default="", help="of several ranks; 0,0: two in turns on one")
    parser.add_argument("--tokens", type=int, default=192, help="of each text, prompt included")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--exact-activations", action="store_true")
    parser.add_argument("--stages", action="store_true", help="of layers, not of each layer")
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--only", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        write_logits(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        numbers = whole_numbers(options.ranks)
        for ranks in numbers:
            command = [sys.executable, __file__, *sys.argv[1:], "--only", str(ranks)]
            subprocess.run([*command, "--folder", folder], check=True, timeout=options.timeout)
        found = [compared(Path(folder), numbers[0], ranks) for ranks in numbers[1:]]
    print(json.dumps({"bench": "rank_logits", "rows": found, **machine_facts()}))


def write_logits(options: argparse.Namespace) -> None:
    """Write the logits of each text; the texts as well where there are none."""
    from zse.engine.ranks.opening import load_ranked_runner
    from zse.models.runner import load_runner

    settings = load_settings()
    values = {
        "device": options.device,
        "pipeline_parallel" if options.stages else "tensor_parallel": options.only,
        "deterministic": options.deterministic,
        "exact_activations": options.exact_activations,
        "max_context": options.tokens + 32,
        "max_sequences": 1,
        "gpus": options.gpus if options.only > 1 else "",
    }
    load = with_values(settings.serve.load, values)
    open_runner = load_ranked_runner if options.only > 1 else load_runner
    runner = open_runner(options.model, load, cache_dir=settings.cache_dir)
    texts_file = options.folder / "texts.json"
    try:
        texts = (
            json.loads(texts_file.read_text())
            if texts_file.exists()
            else [greedy(runner, one, options.tokens) for one in prompts(runner)]
        )
        texts_file.write_text(json.dumps(texts))
        with (options.folder / f"{options.only}.bin").open("wb") as out:
            for text in texts:
                for row in runner.logits(text):
                    out.write(array("f", row).tobytes())
        (options.folder / "vocab").write_text(str(runner.vocab_size))
    finally:
        runner.close()


def prompts(runner: Any) -> list[list[int]]:
    return random_prompts(runner.vocab_size, TEXTS, PROMPT_TOKENS, 2)


def greedy(runner: Any, prompt: list[int], tokens: int) -> list[int]:
    """Return a prompt and the likeliest tokens behind it, a step at a time."""
    from zse.backends.types import SequenceChunk, StepBatch, kind_of
    from zse.kernels.lm_head_sample.row import SamplingRow

    text, new, table = list(prompt), list(prompt), range(-(-tokens // runner.block_size) + 1)
    while len(text) < tokens:
        chunk = SequenceChunk(0, new, len(text) - len(new), table, kind_of(len(new)))
        batch = StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]])
        new = [runner.execute(batch)[0][0].token_id]
        text += new
    return text


def compared(folder: Path, one: int, other: int) -> dict[str, Any]:
    """Compare two files of logits; print what is found."""
    import torch

    vocab = int((folder / "vocab").read_text())
    first, second = (
        torch.from_file(str(file), size=file.stat().st_size // 4, dtype=torch.float32).view(
            -1, vocab
        )
        for file in (folder / f"{one}.bin", folder / f"{other}.bin")
    )
    difference = (first - second).abs()
    top = first.topk(2, dim=1).values
    gaps = top[:, 0] - top[:, 1]
    differ = (first.argmax(1) != second.argmax(1)).nonzero()[:, 0]
    most = float(difference.max())
    probabilities = first.log_softmax(1)
    kl = (probabilities.exp() * (probabilities - second.log_softmax(1))).sum(1).mean()
    found = {
        "ranks": other,
        "against": one,
        "rows": len(first),
        "spread": round(float(first.std()), 4),
        "most_difference": round(most, 5),
        "mean_difference": round(float(difference.mean()), 6),
        "kl": float(f"{float(kl):.3g}"),
        "differ": len(differ),
        "gaps_where_they_differ": [round(float(gap), 5) for gap in gaps[differ]],
        "near_ties": int((gaps[differ] <= 2 * most).sum()),
        "rows_with_such_gaps": int((gaps <= 2 * most).sum()),
        "median_gap": round(float(gaps.median()), 5),
    }
    print(found)
    return found


if __name__ == "__main__":
    main()
