"""What products of 8-bit numbers take from a trained model: prompts in torch, rounded both ways.

    python scripts/bench/rounding.py CHECKPOINT [--tokens 512] [--ways 16 int8 e4m3 turned]

The matrices of the layers are quantized to INT4 in groups of 128. The reference multiplies them by
float32 activations; each way rounds both sides of each product. Prints the mean divergence of the
next token's distribution (KL, in nats) with its 95% interval, and how often the likeliest token is
the same; and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from machine import machine_facts
from transformers import AutoModelForCausalLM, AutoTokenizer

from zse.evaluate.texts import read_texts
from zse.kernels.linear.reference import hadamard
from zse.quantize.int4 import fit

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = 128
ROWS_AT_ONCE = 512
SIGNS = (hadamard(GROUP) / GROUP**0.5).float()


def bfloat16(rows: torch.Tensor) -> torch.Tensor:
    return rows.bfloat16().float()


def int8(rows: torch.Tensor) -> torch.Tensor:
    """Round each row in steps of its largest number's 127th part."""
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (rows / scale).round() * scale


def e4m3(rows: torch.Tensor) -> torch.Tensor:
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448
    return (rows / scale).to(torch.float8_e4m3fn).float() * scale


def turned(rows: torch.Tensor) -> torch.Tensor:
    """Round what ``turn_and_round`` of the kernels' reference rounds, but in float32."""
    return int8((bfloat16(rows).unflatten(-1, (-1, GROUP)) @ SIGNS).flatten(-2))


WAYS = {"16": bfloat16, "int8": int8, "e4m3": e4m3, "turned": turned}


def quantized_(weight: torch.Tensor) -> None:
    """Replace a matrix by what INT4 makes of it, some rows at a time."""
    for rows in weight.split(ROWS_AT_ONCE):
        fitted = fit(rows.clone(), GROUP)
        scale, zero = fitted.scale_zero.float().unsqueeze(2).unbind(-1)
        rows.copy_((fitted.codes.float().unflatten(-1, (-1, GROUP)) * scale + zero).flatten(-2))


class Rounded:
    """A model whose layers' products are rounded as it is told."""

    def __init__(self, checkpoint: Path, num_tokens: int) -> None:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self._prompts = [tokenizer.encode(text)[:num_tokens] for text in read_texts(())]
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self._way: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows
        self._linears = [
            module
            for name, module in self._model.named_modules()
            if isinstance(module, torch.nn.Linear) and "layers." in name
        ]
        for linear in self._linears:
            quantized_(linear.weight.data)
            linear.register_forward_pre_hook(lambda _, inputs: (self._way(inputs[0]),))

    def read(self) -> torch.Tensor:
        """Return log-probabilities of the next token, [tokens, vocabulary]."""
        with torch.no_grad():
            found = [self._model(torch.tensor([ids])).logits[0] for ids in self._prompts]
        return torch.cat(found).log_softmax(-1)

    def read_rounded(self, way: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        kept, plain = [linear.weight.data for linear in self._linears], self._way
        for linear in self._linears:
            linear.weight.data = way(linear.weight.data)
        self._way = way
        try:
            return self.read()
        finally:
            self._way = plain
            for linear, weight in zip(self._linears, kept, strict=True):
                linear.weight.data = weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokens", type=int, default=512, help="of each text")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    options = parser.parse_args()
    model = Rounded(options.checkpoint, options.tokens)
    wanted, results = model.read(), {}
    for way in options.ways:
        found = model.read_rounded(WAYS[way])
        far = (wanted.exp() * (wanted - found)).sum(-1)
        same = (wanted.argmax(-1) == found.argmax(-1)).float().mean()
        margin = 1.96 * far.std() / far.numel() ** 0.5
        print(f"{way:<8} KL {far.mean():.5f} +-{margin:.5f}  same likeliest token {same:.1%}")
        results[way] = {"divergence_nats": round(far.mean().item(), 5), "same_top": same.item()}
    facts = {"subject": "rounding", "model": options.checkpoint.parent.name, **machine_facts()}
    print(json.dumps({**facts, "num_tokens": far.numel(), "results": results}))


if __name__ == "__main__":
    main()
