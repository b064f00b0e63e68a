"""What another library's rounding takes from a model: its weights, in transformers, in float32.

    python scripts/bench/peers/rounded_weights.py bnb-nf4 CHECKPOINT [--tokens 1024] [--text FILE]

Every linear layer but the output head is rounded and given back as numbers, so that arithmetic
rounds nothing more: the kindest way to look at the peer. Prints one JSON object with the names that
`zse eval --json` has.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zse.cli.eval import figures_of
from zse.evaluate.models import CheckpointReader
from zse.evaluate.run import evaluate
from zse.evaluate.texts import read_texts, windows_of
from zse.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokens", type=int, help="of each text")
    parser.add_argument("--text", type=Path, action="append", default=[])
    options = parser.parse_args()
    texts = read_texts(options.text)
    tokenizer = tokenizer_of(options.checkpoint)
    windows = windows_of(tokenizer, texts, context=CONTEXT, num_tokens=options.tokens)
    rounded = RoundedReader(options.checkpoint, PEERS[options.peer])
    found = evaluate(rounded, windows, CheckpointReader(options.checkpoint))
    print(json.dumps({"peer": options.peer, "bits": rounded.bits, **figures_of(found)}))


class RoundedReader(CheckpointReader):
    """A checkpoint whose linear layers are rounded.

    Args:
        folder: The checkpoint.
        round_weights: Gives a matrix back as rounded, and the bits of one weight.
    """

    def __init__(
        self, folder: Path, round_weights: Callable[[torch.Tensor], tuple[torch.Tensor, float]]
    ) -> None:
        super().__init__(folder)
        self.bits = 0.0
        head = self._model.get_output_embeddings()
        for layer in self._model.modules():
            if isinstance(layer, torch.nn.Linear) and layer is not head:
                layer.weight.data, self.bits = round_weights(layer.weight.data)


def bnb_nf4(weights: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Round as bitsandbytes does by default: NF4 in blocks of 64, a float32 scale each."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed, state = quantize_4bit(weights, blocksize=64, quant_type="nf4")
    return dequantize_4bit(packed, state).to(weights.dtype), 4 + 32 / 64


def tokenizer_of(checkpoint: Path) -> Tokenizer:
    def section(name: str) -> bytes | None:
        path = checkpoint / name
        return path.read_bytes() if path.is_file() else None

    return Tokenizer.from_sections(section)


PEERS: dict[str, Any] = {"bnb-nf4": bnb_nf4}


if __name__ == "__main__":
    main()
