"""What our schemes cost a trained model beside those of other libraries: one text, one run.

    python scripts/bench/quantizers.py CHECKPOINT [--only int4 ...] [--noise] [--device cuda]

Every matrix of the layers of a checkpoint is quantized without data and put back in float32; head
and embedding stay as they are, so that rows differ in rounding alone. The reference is the same
checkpoint in float32. A library that is not installed is left out and named: bitsandbytes comes
with the ``hf`` extra, hqq and torchao belong into an environment of their own. Prints a row a
quantizer and one JSON object as the last line. A 1.5B takes 10 GB of memory.

A checkpoint that was in four bits once, such as one that was made of a GGUF file, has few values in
each small group, which roundings in groups as small find again: that flatters them. ``--noise``
adds noise as wide as a step of those, which leaves no such grid, and the model with it is the
reference.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from machine import machine_facts

from zse import __version__
from zse.evaluate.models import Remembering
from zse.evaluate.run import Evaluation, evaluate
from zse.evaluate.texts import read_texts, windows_of
from zse.format.as_torch import dequantize
from zse.format.schemes import Scheme
from zse.format.spec import TensorEntry
from zse.quantize.place_of_work import choose_device
from zse.quantize.scheme import quantize_rows
from zse.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Rounding = Callable[[torch.Tensor], torch.Tensor]

ROWS_AT_ONCE = {"cpu": 256, "cuda": 8192}
"""What a core's cache holds; on a GPU it is the number of operations that takes time."""


class TorchReader:
    """A model of transformers whose matrices may be replaced."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self._model = model
        self._device = device

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        with torch.inference_mode():
            ids = torch.tensor([list(token_ids)], device=self._device)
            rows = self._model(ids).logits[0]
        found: NDArray[np.float32] = rows.float().cpu().numpy()
        return found


def ours(scheme: Scheme, group_size: int) -> Rounding:
    """Return what ``zse convert`` does to a matrix, and a reader undoes."""

    def round_rows(rows: torch.Tensor) -> torch.Tensor:
        size = divided(rows.shape[1], group_size)
        entry = TensorEntry(
            name="", scheme=scheme, shape=tuple(rows.shape), group_size=size, parts=()
        )
        return dequantize(entry, quantize_rows(scheme, rows, size))

    return round_rows


def divided(columns: int, group_size: int) -> int:
    """Return the size of groups that divide so many columns: as asked for, or the next smaller."""
    return next(one for one in (group_size, 64, 32, 16) if columns % one == 0)


def int8(rows: torch.Tensor) -> torch.Tensor:
    entry = TensorEntry(
        name="", scheme=Scheme.INT8, shape=tuple(rows.shape), group_size=0, parts=()
    )
    return dequantize(entry, quantize_rows(Scheme.INT8, rows))


def bitsandbytes_nf4(rows: torch.Tensor) -> torch.Tensor:
    from bitsandbytes import functional

    codes, state = functional.quantize_4bit(rows, blocksize=64, quant_type="nf4")
    found: torch.Tensor = functional.dequantize_4bit(codes, state)
    return found


def hqq(group_size: int) -> Rounding:
    def round_rows(rows: torch.Tensor) -> torch.Tensor:
        from hqq.core.quantize import Quantizer

        size = divided(rows.shape[1], group_size)
        codes, facts = Quantizer.quantize(
            rows,
            nbits=4,
            group_size=size,
            axis=1,
            device=str(rows.device),
            compute_dtype=torch.float32,
        )
        found: torch.Tensor = Quantizer.dequantize(codes, facts)
        return found

    return round_rows


def torchao(group_size: int) -> Rounding:
    """Return its 4-bit rounding: each group by its smallest and its largest weight."""

    def round_rows(rows: torch.Tensor) -> torch.Tensor:
        from torchao.quantization import quant_primitives as own

        size = divided(rows.shape[1], group_size)
        block, whole = (1, size), (torch.uint8, 0, 15)
        scale, zero = own.choose_qparams_affine(
            rows, own.MappingType.ASYMMETRIC, block, *whole, eps=1e-6
        )
        codes = own.quantize_affine(rows, block, scale, zero, *whole)
        found: torch.Tensor = own.dequantize_affine(codes, block, scale, zero, *whole)
        return found

    return round_rows


OURS = "zse"
QUERIES_KEYS_VALUES = re.compile(r"\.layers\.(\d+)\..*\.[qkv]_proj\.weight")
NOISE_COLUMNS = 32
"""As many weights as share a scale in GGUF's types of four bits."""
NARROW_EVERY = 8
"""Layers of which the last one has groups of 64 there instead of INT8."""


class Quantizer(NamedTuple):
    """A way to round, and what it keeps of a matrix."""

    library: str
    code_bits: int
    """Of a weight."""
    scale_bits: int
    """Of all that a group has besides."""
    group_size: int
    rounding: Rounding
    """Of [rows, columns]."""

    def bits(self, columns: int) -> float:
        """Return the bits a weight of a matrix with so many columns."""
        return self.code_bits + self.scale_bits / divided(columns, self.group_size)


QUANTIZERS: dict[str, Quantizer] = {
    "int4": Quantizer(OURS, 4, 32, 128, ours(Scheme.INT4, 128)),
    "int4-g128": Quantizer(OURS, 4, 32, 128, ours(Scheme.INT4, 128)),
    "int4-g64": Quantizer(OURS, 4, 32, 64, ours(Scheme.INT4, 64)),
    "int3": Quantizer(OURS, 3, 32, 64, ours(Scheme.INT3, 64)),
    "int2": Quantizer(OURS, 2, 32, 32, ours(Scheme.INT2, 32)),
    "nf4": Quantizer(OURS, 4, 16, 64, ours(Scheme.NF4, 64)),
    "nl4": Quantizer(OURS, 4, 8, 16, ours(Scheme.NL4, 16)),
    "nl4-g32": Quantizer(OURS, 4, 8, 32, ours(Scheme.NL4, 32)),
    "bitsandbytes-nf4": Quantizer("bitsandbytes", 4, 32, 64, bitsandbytes_nf4),
    "hqq": Quantizer("hqq", 4, 32, 128, hqq(128)),
    "hqq-g64": Quantizer("hqq", 4, 32, 64, hqq(64)),
    "torchao": Quantizer("torchao", 4, 32, 128, torchao(128)),
    "torchao-g64": Quantizer("torchao", 4, 32, 64, torchao(64)),
}
"""The default, ``int4``, has INT8 for most queries, keys and values besides."""


def rounding_of(quantizer: str, name: str, columns: int) -> tuple[float, Rounding]:
    """Return the bits a weight and the rounding of one matrix."""
    chosen = QUANTIZERS[quantizer]
    found = QUERIES_KEYS_VALUES.search(name) if quantizer == "int4" else None
    if found is None:
        return chosen.bits(columns), chosen.rounding
    if int(found[1]) % NARROW_EVERY == NARROW_EVERY - 1:
        return rounding_of("int4-g64", name, columns)
    return 8 + 32 / columns, int8


def add_noise(model: Any) -> None:
    """Hide the grid that four bits left: noise of a step of each 32 weights, always the same."""
    torch.manual_seed(7)
    for weight in matrices(model).values():
        groups = weight.view(-1, NOISE_COLUMNS)
        low, high = groups.aminmax(dim=1, keepdim=True)
        groups += (torch.rand_like(groups) - 0.5) * (high - low) / 15
        weight.copy_(weight.bfloat16())


def matrices(model: Any) -> dict[str, torch.Tensor]:
    """Return the matrices of the layers: what ``--quant`` is for."""
    return {
        name: weight
        for name, weight in model.named_parameters()
        if ".layers." in name and weight.dim() == 2
    }


def kept(weight: torch.Tensor) -> torch.Tensor:
    """Return a copy of float32 numbers, in half the memory where that holds them exactly."""
    narrow = weight.bfloat16()
    return narrow if torch.equal(narrow.float(), weight) else weight.clone()


@torch.no_grad()
def put_rounded(model: Any, exact: dict[str, torch.Tensor], quantizer: str) -> tuple[float, float]:
    """Replace the matrices by what a quantizer makes of them; return relative error and bits."""
    lost, all_of_it, bits, count = 0.0, 0.0, 0.0, 0
    for name, weight in matrices(model).items():
        bits_each, rounding = rounding_of(quantizer, name, weight.shape[1])
        count += weight.numel()
        bits += weight.numel() * bits_each
        step = ROWS_AT_ONCE[weight.device.type]
        for start in range(0, weight.shape[0], step):
            rows = exact[name][start : start + step].float()
            found = rounding(rows)
            lost += (found - rows).square().sum().item()
            all_of_it += rows.square().sum().item()
            weight[start : start + step] = found
    return float((lost / all_of_it) ** 0.5), bits / count


def text_of(folder: Path, name: str) -> bytes | None:
    return (folder / name).read_bytes() if (folder / name).is_file() else None


def installed(library: str) -> str | None:
    if library == OURS:  # which may run from its sources
        return __version__
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def shown(name: str, bits: float, error: float, found: Evaluation) -> dict[str, float]:
    """Print a row and return it for the JSON object."""
    assert found.distance is not None
    far, same = found.distance.divergence_nats, found.distance.same_top
    print(
        f"{name:<18} {bits:>5} {error:>7.2%} {far.value:>9.4f} +-{far.margin:6.4f} "
        f"{same.value:>7.1%} +-{same.margin:5.1%} {found.perplexity:>10.2f}",
        flush=True,
    )
    return {
        "bits_per_weight": bits,
        "weight_error": round(error, 5),
        "divergence_nats": round(far.value, 5),
        "divergence_nats_margin": round(far.margin, 5),
        "same_top": round(same.value, 5),
        "perplexity": round(found.perplexity, 4),
    }


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--only", nargs="+", default=list(QUANTIZERS), choices=QUANTIZERS)
    parser.add_argument("--text", nargs="+", type=Path, default=[], help="instead of the sample")
    parser.add_argument("--tokens", type=int, default=768, help="of each text, at most")
    parser.add_argument("--noise", action="store_true", help="for checkpoints once in four bits")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N, of torch")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device = choose_device(options.device)
    model: Any = AutoModelForCausalLM.from_pretrained(
        options.checkpoint, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    model = model.eval().to(device)
    if options.noise:
        with torch.no_grad():
            add_noise(model)
    exact = {name: kept(weight.detach()) for name, weight in matrices(model).items()}
    tokenizer = Tokenizer.from_sections(partial(text_of, options.checkpoint))
    windows = windows_of(
        tokenizer, read_texts(options.text), context=options.tokens, num_tokens=options.tokens
    )
    reader = TorchReader(model, device)
    reference = Remembering(reader)
    for window in windows:
        reference.logits(window.token_ids)
    results, libraries = {}, {}
    print(f"{'quantizer':<18} {'bits':>5} {'weights':>7} {'KL':>18} {'same top':>15} perplexity")
    for name in options.only:
        library = QUANTIZERS[name].library
        libraries[library] = installed(library)
        if libraries[library] is None:
            print(f"{name:<18} {library} is not installed")
            continue
        try:
            error, bits = put_rounded(model, exact, name)
        except (ImportError, RuntimeError, TypeError, ValueError) as failure:  # of one library
            print(f"{name:<18} {library} {libraries[library]} failed: {failure!r}", flush=True)
            continue
        found = evaluate(reader, windows, reference)
        results[name] = shown(name, round(bits, 3), error, found)
    facts = {"subject": "quantizers", "model": options.checkpoint.parent.name, **machine_facts()}
    facts |= {"num_windows": len(windows), "noise": options.noise, "libraries": libraries}
    print(json.dumps({**facts, "results": results}))


if __name__ == "__main__":
    main()
