"""What calibration makes of INT4 here and in a library: one text, one run, the same bits.

    python scripts/bench/calibrated.py CHECKPOINT [--only gptq ...] [--tokens 400]

A model in float32 reads the sample that ``zse convert --calibrate sample`` reads, once, and the
products of what each matrix of its layers is given are kept. Every method gets the same products
and makes codes in groups of 128 of the same matrices, head and embedding left whole; KL is from the
model in float32, on texts that were not read. llm-compressor's GPTQ is called matrix by matrix as
its pipeline does it, with its usual damping and its static order of inputs, its scales by each
group's smallest and largest weight; it belongs into an environment of its own
(``pip install llmcompressor``).

Prints a row a method and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from machine import machine_facts
from quantizers import OURS, TorchReader, installed, shown, text_of

from zse.evaluate.models import Remembering
from zse.evaluate.run import evaluate
from zse.evaluate.texts import read_texts, windows_of
from zse.format.as_torch import dequantize
from zse.format.schemes import Scheme
from zse.format.spec import TensorEntry
from zse.quantize.calibrate.feedback import Feedback
from zse.quantize.calibrate.moments import ranges_of
from zse.quantize.calibrate.rounding import round_rows
from zse.quantize.calibrate.texts import read_calibration, sequences_of
from zse.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    Method = Callable[[torch.Tensor, "Inputs"], torch.Tensor]

GROUP = 128
BITS = 4.25
READ_TOGETHER = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
"""Matrices whose inputs are another's."""
DAMPING = 0.01
BLOCK = 128


class Inputs(NamedTuple):
    """What a matrix was given."""

    products: torch.Tensor
    """float32 [K, K]: the mean over tokens."""
    count: int


class Collected:
    """Mean products of the inputs of each matrix; matrices that read the same share them."""

    def __init__(self, model: Any, sequences: list[list[int]]) -> None:
        self.count = 0
        self._sums: dict[str, torch.Tensor] = {}
        hooks = [
            module.register_forward_pre_hook(partial(self._add, name))
            for name, module in model.named_modules()
            if ".layers." in name and isinstance(module, torch.nn.Linear) and self._own(name)
        ]
        with torch.inference_mode():
            for ids in sequences:
                model.model(torch.tensor([ids]))
                self.count += len(ids)
        for hook in hooks:
            hook.remove()

    def of(self, parameter: str) -> Inputs:
        """Return those of a matrix, by the name of its parameter."""
        module = parameter.removesuffix(".weight")
        head, _, last = module.rpartition(".")
        sums = self._sums[f"{head}.{READ_TOGETHER.get(last, last)}"]
        return Inputs(sums / self.count, self.count)

    def _own(self, name: str) -> bool:
        return name.rpartition(".")[2] not in READ_TOGETHER

    def _add(self, name: str, _module: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        inputs = arguments[0].reshape(-1, arguments[0].shape[-1]).float()
        size = inputs.shape[1]
        self._sums.setdefault(name, torch.zeros(size, size)).addmm_(inputs.t(), inputs)


def group_of(columns: int) -> int:
    return next(size for size in (GROUP, 64, 32) if columns % size == 0)


def ours(has_feedback: bool, rows: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Return what ``zse convert --calibrate`` makes of a matrix."""
    size = group_of(rows.shape[1])
    feedbacks = [
        Feedback.of(start, inputs.products[start:end, start:end], inputs.count)
        for start, end in (ranges_of(rows.shape[1]) if has_feedback else ())
    ]
    squares = inputs.products.diagonal().clamp(min=1e-30)
    parts = round_rows(Scheme.INT4, rows, size, squares, feedbacks)
    entry = TensorEntry(
        name="", scheme=Scheme.INT4, shape=tuple(rows.shape), group_size=size, parts=()
    )
    return dequantize(entry, parts)


def llm_compressor(rows: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.utils import calculate_qparams
    from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight

    size = group_of(rows.shape[1])
    asked = QuantizationArgs(
        num_bits=4, symmetric=False, strategy="group", group_size=size, actorder="static"
    )
    groups = rows.view(rows.shape[0], -1, size)
    scale, zero = calculate_qparams(groups.amin(2), groups.amax(2), asked)
    found, _, used_rounding = quantize_weight(
        rows[None].clone(),
        inputs.products[None].clone(),
        scale[None].float(),
        zero[None],
        None,
        asked,
        blocksize=BLOCK,
        percdamp=DAMPING,
    )
    if bool(used_rounding.any()):
        raise RuntimeError("it took a matrix's plain rounding, since its products had no factor")
    return found[0].float()


METHODS: dict[str, tuple[str, Method]] = {
    "squares": (OURS, partial(ours, False)),
    "calibrated": (OURS, partial(ours, True)),
    "llm-compressor": ("llmcompressor", llm_compressor),
}


@torch.no_grad()
def put(model: Any, exact: dict[str, torch.Tensor], found: Collected, method: Method) -> float:
    """Replace the matrices by what a method makes of them; return the relative error."""
    lost, all_of_it = 0.0, 0.0
    parameters = dict(model.named_parameters())
    for name, weight in exact.items():
        rows = weight.float()
        made = method(rows, found.of(name))
        lost += (made - rows).square().sum().item()
        all_of_it += rows.square().sum().item()
        parameters[name].copy_(made)
    return float((lost / all_of_it) ** 0.5)


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--only", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--text", nargs="+", type=Path, default=[], help="instead of the sample")
    parser.add_argument("--tokens", type=int, default=768, help="of each text, at most")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    model: Any = AutoModelForCausalLM.from_pretrained(
        options.checkpoint, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    ).eval()
    section = partial(text_of, options.checkpoint)
    tokenizer = Tokenizer.from_sections(section)
    windows = windows_of(
        tokenizer, read_texts(options.text), context=options.tokens, num_tokens=options.tokens
    )
    reader = TorchReader(model, torch.device("cpu"))
    reference = Remembering(reader)
    for window in windows:
        reference.logits(window.token_ids)
    exact = {
        name: weight.detach().to(torch.bfloat16)
        for name, weight in model.named_parameters()
        if ".layers." in name and weight.dim() == 2
    }
    found = Collected(model, sequences_of(read_calibration("sample"), tokenizer, section))
    print(f"{found.count} tokens were read; KL is of {sum(len(w.token_ids) for w in windows)}")
    results: dict[str, Any] = {}
    for name in options.only:
        library, method = METHODS[name]
        if installed(library) is None:
            print(f"{name:<18} {library} is not installed")
            continue
        error = put(model, exact, found, method)
        row = shown(name, BITS, error, evaluate(reader, windows, reference))
        results[name] = {**row, "library": f"{library} {installed(library)}"}
    facts = {"subject": "calibrated", "model": options.checkpoint.parent.name, **machine_facts()}
    print(json.dumps({**facts, "calibration_tokens": found.count, "results": results}))


if __name__ == "__main__":
    main()
