"""How far a whole model's logits are from float32: the engine's against transformers'.

    python scripts/bench/logits.py MODEL.zse [--device cuda] [--tokens 96]

The reference is the transformers model of the file's own config.json in float32, with the weights
of the file dequantized: only the arithmetic differs. Two ways of the engine are compared, the
prompt read at once and the same tokens one by one, as decoding reads them, each with and without
8-bit activations. What transformers itself loses in bfloat16 is the yardstick. Prints a table, and
one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import torch
from machine import machine_facts

from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options
from zse.quantize.huggingface.load import load_zse_model
from zse.settings import load_settings

if TYPE_CHECKING:
    from zse.backends.types import LogitRows

CHUNKS = {"prefill": 512, "decode": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    options = parser.parse_args()
    found: dict[str, torch.Tensor] = {}
    for exact in (False, True):
        runner = open_runner(options, exact=exact)
        token_ids = random_ids(runner.vocab_size, options.tokens, options.seed)
        try:
            for name, chunk_tokens in CHUNKS.items():
                logits = runner.logits(token_ids, chunk_tokens=chunk_tokens)
                found[f"{name}, exact" if exact else name] = as_tensor(logits)
        finally:
            runner.close()
    expected = reference_logits(options, token_ids, "float32")
    found["transformers bf16"] = reference_logits(options, token_ids, "bfloat16")
    results = {name: compare(logits, expected) for name, logits in found.items()}
    print(f"{'way':<18} {'relative error':>14} {'largest':>9} {'same top token':>15}")
    for name, row in results.items():
        print(
            f"{name:<18} {row['relative_error']:>14.2e} {row['largest_relative_error']:>9.2e} "
            f"{row['same_top_token']:>11}/{options.tokens}"
        )
    facts = {"subject": "logits", "model": options.model, **machine_facts()}
    print(json.dumps({**facts, "num_tokens": options.tokens, "results": results}))


def open_runner(options: argparse.Namespace, *, exact: bool) -> ModelRunner:
    return load_runner(
        options.model,
        load_options(
            device=options.device,
            max_context=max(options.tokens, 512),
            num_blocks=64,
            max_sequences=1,
            exact_activations=exact,
            kernels=load_settings().serve.load.device.kernels,
        ),
        cache_dir=load_settings().cache_dir,
    )


def random_ids(vocab_size: int, count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab_size, (count,), generator=generator).tolist()


def as_tensor(rows: LogitRows) -> torch.Tensor:
    """Return a backend's logits as float32 [tokens, vocab_size]."""
    return torch.stack([torch.frombuffer(row, dtype=torch.float32) for row in rows])


def reference_logits(options: argparse.Namespace, token_ids: list[int], dtype: str) -> torch.Tensor:
    model, _, _ = load_zse_model(
        options.model, cache_weights=True, device=options.device, dtype=dtype
    )
    with torch.inference_mode():
        ids = torch.tensor([token_ids], device=model.device)
        logits: torch.Tensor = model(ids).logits[0]
    return logits.float().cpu()


def compare(found: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """Return errors relative to the reference, both [tokens, vocab_size].

    ``relative_error`` is the norm of the difference over the norm of the reference, of all tokens;
    ``largest_relative_error`` that of the worst token.
    """
    assert found.shape == expected.shape
    difference = found.double() - expected.double()
    by_token = difference.norm(dim=1) / expected.double().norm(dim=1)
    same = (found.argmax(1) == expected.argmax(1)).sum()
    return {
        "relative_error": float(difference.norm() / expected.double().norm()),
        "largest_relative_error": float(by_token.max()),
        "same_top_token": int(same),
    }


if __name__ == "__main__":
    main()
