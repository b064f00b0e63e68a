"""Quantized checkpoints from end to end: the answers, and the file's bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import shape_of
from logits import as_tensor
from quantized_folders import Grid, awq_tensors, gptq_tensors, random_grid, rewritten

from zse.models.runner import load_runner
from zse.options import load_options
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = torch.randint(3, 320, (20,), generator=torch.Generator().manual_seed(3)).tolist()
PACKERS = {"gptq": gptq_tensors, "awq": awq_tensors}


def make(folder: Path, method: str) -> torch.nn.Module:
    """Write a checkpoint of symmetric grids; return transformers' model of the same numbers."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(**shape_of("llama"))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16)
    model.save_pretrained(folder)
    numbers: dict[str, torch.Tensor] = {}

    def quantized(base: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        rows, columns = weight.shape
        grid = random_grid(rows, columns, 32, len(numbers))
        even = Grid(grid.codes, torch.full_like(grid.zeros, 8), grid.scales)
        numbers[f"{base}weight"] = even.values()
        return PACKERS[method](even)

    rewritten(folder, {"quant_method": method, "bits": 4, "group_size": 32}, quantized)
    model = model.float().eval()
    model.load_state_dict(numbers, strict=False)
    return model


@pytest.mark.parametrize("method", PACKERS)
def test_logits_are_those_of_the_numbers_that_the_checkpoint_stands_for(
    tmp_path: Path, method: str
) -> None:
    model = make(tmp_path / "c", method)
    convert_model(tmp_path / "c", tmp_path / "m.zse", "fp16", allow_no_tokenizer=True)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0]
    options = load_options(
        device="cpu", exact_activations=True, kv_dtype="fp32", num_blocks=16, block_size=8
    )
    runner = load_runner(tmp_path / "m.zse", options)
    try:
        found = as_tensor(runner.logits(PROMPT))
    finally:
        runner.close()
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4


def test_a_stopped_conversion_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    make(tmp_path / "c", "awq")

    def convert(name: str, **options: Any) -> Any:
        return convert_model(tmp_path / "c", tmp_path / name, allow_no_tokenizer=True, **options)

    def stop(now: Any) -> None:
        if now.stage == "convert" and now.done_bytes > 0.6 * now.total_bytes:
            raise KeyboardInterrupt

    whole = convert("whole.zse")
    with pytest.raises(KeyboardInterrupt):
        convert("m.zse", resume=True, progress=stop)
    resumed = convert("m.zse", resume=True)
    assert resumed.resumed_groups
    assert resumed.sha256 == whole.sha256
