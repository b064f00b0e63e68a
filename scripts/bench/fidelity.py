"""How far each scheme takes a trained model from itself: its next tokens against float32's.

    python scripts/bench/fidelity.py CHECKPOINT [--quant bf16 int8 nf4 int4] [--device cuda]

A checkpoint of ``scripts/real_models`` is converted, and reads a page of prose and one of code
(``tests/data/texts``) as a prefill. The reference is the same checkpoint in ``transformers``, in
float32. Prints, for each scheme, the mean divergence of the next token's distribution (KL, in
nats), how often the likeliest token is the same, and the perplexity; and one JSON object as the
last line.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from machine import machine_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXTS = Path(__file__).resolve().parents[2] / "tests" / "data" / "texts"
QUANTIZATIONS = ("bf16", "fp16", "int8", "nf4", "int4")
ROWS = 64
"""Distributions over 150,000 tokens are compared so many at a time."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """One model's next tokens against the reference's, over the same texts."""

    divergence: float
    """Mean KL(reference || model), in nats."""
    same_top: float
    """Share of positions whose likeliest token is the reference's."""
    perplexity: float
    reference_perplexity: float

    def as_json(self) -> dict[str, float]:
        return {name: round(value, 5) for name, value in vars(self).items()}


def read_texts(tokenizer: Any, num_tokens: int) -> list[list[int]]:
    """Return the token ids of the texts, at most ``num_tokens`` of each."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(TEXTS.glob("*.txt"))]
    return [tokenizer.encode(text)[:num_tokens] for text in texts]


def load_reference(checkpoint: Path) -> Any:
    """Return the checkpoint in ``transformers``, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def reference_logits(reference: Any, token_ids: list[int]) -> torch.Tensor:
    """Return float32 [tokens, vocabulary]."""
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([token_ids])).logits[0]
    return logits.float()


def compare(pairs: Iterable[tuple[list[int], torch.Tensor, torch.Tensor]]) -> Fidelity:
    """Compare logits, text by text.

    Args:
        pairs: Token ids [tokens], the reference's logits and the model's [tokens, vocabulary].
    """
    divergence = same = surprise = reference_surprise = 0.0
    num_rows = num_next = 0
    for token_ids, expected, found in pairs:
        following = torch.tensor(token_ids[1:])
        for start in range(0, len(token_ids), ROWS):
            p = torch.log_softmax(expected[start : start + ROWS].double(), dim=1)
            q = torch.log_softmax(found[start : start + ROWS].double(), dim=1)
            divergence += float((p.exp() * (p - q)).sum())
            same += int((p.argmax(1) == q.argmax(1)).sum())
            chosen = following[start : start + ROWS, None]
            surprise -= float(q[: len(chosen)].gather(1, chosen).sum())
            reference_surprise -= float(p[: len(chosen)].gather(1, chosen).sum())
        num_rows += len(token_ids)
        num_next += len(following)
    return Fidelity(
        divergence=divergence / num_rows,
        same_top=same / num_rows,
        perplexity=math.exp(surprise / num_next),
        reference_perplexity=math.exp(reference_surprise / num_next),
    )


def measure(
    path: Path, texts: list[list[int]], expected: list[torch.Tensor], device: str
) -> Fidelity:
    """Compare a .zse file's model with what the reference said of the texts."""
    from zse.engine.llm import LLM

    with LLM(path, device=device, max_context=max(map(len, texts)) + 16, max_sequences=1) as llm:
        found = (
            torch.stack([torch.frombuffer(row, dtype=torch.float32) for row in llm.logits(ids)])
            for ids in texts
        )
        return compare(zip(texts, expected, found, strict=True))


def main() -> None:
    from transformers import AutoTokenizer

    from zse.quantize.convert import convert_model

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--quant", nargs="+", default=QUANTIZATIONS, choices=QUANTIZATIONS)
    parser.add_argument("--tokens", type=int, default=768, help="of each text, at most")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    options = parser.parse_args()
    texts = read_texts(AutoTokenizer.from_pretrained(options.checkpoint), options.tokens)
    reference = load_reference(options.checkpoint)
    expected = [reference_logits(reference, ids) for ids in texts]
    del reference
    results = {}
    print(f"{'scheme':<8} {'bytes':>14} {'KL':>9} {'same top':>9} {'perplexity':>11}")
    for quant in options.quant:
        with tempfile.TemporaryDirectory(prefix="zse-fidelity-") as folder:
            path = Path(folder) / "model.zse"
            size = convert_model(options.checkpoint, path, quant).size_bytes
            found = measure(path, texts, expected, options.device)
        results[quant] = {"file_bytes": size, **found.as_json()}
        print(
            f"{quant:<8} {size:>14,} {found.divergence:>9.5f} {found.same_top:>9.1%} "
            f"{found.perplexity:>11.2f}"
        )
    print(f"float32 {'':>14} {'':>9} {'':>9} {found.reference_perplexity:>11.2f}")
    facts = {"subject": "fidelity", "model": options.checkpoint.parent.name, **machine_facts()}
    print(json.dumps({**facts, "num_tokens": sum(map(len, texts)), "results": results}))


if __name__ == "__main__":
    main()
