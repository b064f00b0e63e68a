"""How far each scheme takes a trained model from itself: its next tokens against float32's.

    python scripts/bench/fidelity.py CHECKPOINT [--quant bf16 int8 nf4 int4] [--device cuda]

A checkpoint of ``scripts/real_models`` is converted, and reads a page of prose and one of code as
a prefill, or token by token (``--as decode``), as ``zse eval FILE --against CHECKPOINT`` does for
one file: the reference is the same checkpoint in ``transformers``, in float32. Prints, for each
scheme, the mean divergence of the next token's distribution (KL, in nats) with its 95% interval,
how often the likeliest token is the same, and the perplexity; and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from machine import machine_facts

from zse.evaluate.models import PREFILL_TOKENS, CheckpointReader, Remembering, open_engine
from zse.evaluate.run import Evaluation, evaluate
from zse.evaluate.texts import read_texts, windows_of
from zse.format.reader import ZSEReader
from zse.option import with_values
from zse.settings import load_settings
from zse.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.evaluate.models import Reader

QUANTIZATIONS = ("bf16", "fp16", "int8", "nf4", "int4")


def measure(
    path: Path,
    reference: Reader,
    *,
    texts: Sequence[Path] = (),
    num_tokens: int = 768,
    read_as: str = "prefill",
    device: str = "cpu",
) -> Evaluation:
    """Hold a .zse file's model against the reference, on the first tokens of each text."""
    settings = load_settings()
    load = with_values(settings.serve.load, {"device": device})
    with ZSEReader(path) as reader:
        tokenizer = load_tokenizer(reader)
    windows = windows_of(tokenizer, read_texts(texts), context=num_tokens, num_tokens=num_tokens)
    chunk_tokens = PREFILL_TOKENS if read_as == "prefill" else 1
    with open_engine(path, load, settings, context=num_tokens, chunk_tokens=chunk_tokens) as model:
        return evaluate(model, windows, reference)


def main() -> None:
    from zse.quantize.convert import convert_model

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--quant", nargs="+", default=QUANTIZATIONS, choices=QUANTIZATIONS)
    parser.add_argument("--text", nargs="+", type=Path, default=[], help="instead of the sample")
    parser.add_argument("--tokens", type=int, default=768, help="of each text, at most")
    parser.add_argument("--as", dest="read_as", default="prefill", choices=("prefill", "decode"))
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    options = parser.parse_args()
    reference = Remembering(CheckpointReader(options.checkpoint))
    results = {}
    print(f"{'scheme':<8} {'bytes':>14} {'KL':>18} {'same top':>9} {'perplexity':>11}")
    for quant in options.quant:
        with tempfile.TemporaryDirectory(prefix="zse-fidelity-") as folder:
            path = Path(folder) / "model.zse"
            size = convert_model(options.checkpoint, path, quant).size_bytes
            found = measure(
                path,
                reference,
                texts=options.text,
                num_tokens=options.tokens,
                read_as=options.read_as,
                device=options.device,
            )
        assert found.distance is not None
        far, same = found.distance.divergence_nats, found.distance.same_top
        expected = math.exp(found.distance.other_surprise_nats.value)
        results[quant] = {
            "file_bytes": size,
            "divergence_nats": round(far.value, 5),
            "divergence_nats_margin": round(far.margin, 5),
            "same_top": round(same.value, 5),
            "perplexity": round(found.perplexity, 5),
            "reference_perplexity": round(expected, 5),
        }
        print(
            f"{quant:<8} {size:>14,} {far.value:>9.5f} +-{far.margin:7.5f} {same.value:>9.1%} "
            f"{found.perplexity:>11.2f}"
        )
    print(f"float32 {'':>14} {'':>18} {'':>9} {expected:>11.2f}")
    facts = {"subject": "fidelity", "model": options.checkpoint.parent.name, **machine_facts()}
    facts |= {"read_as": options.read_as, "num_tokens": found.num_tokens}
    print(json.dumps({**facts, "results": results}))


if __name__ == "__main__":
    main()
