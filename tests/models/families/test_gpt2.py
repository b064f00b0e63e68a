"""GPT-2's own checkpoints, which older tools saved, and configurations that are not computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import shape_of
from logits import as_tensor
from safetensors.torch import load_file, save_file

from zse.errors import UnsupportedModelError
from zse.format import Scheme
from zse.models.families import read_checkpoint
from zse.models.runner import load_runner
from zse.models.storage import Storage
from zse.options import load_options
from zse.quantize.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.spec import ModelSpec


def read(**changes: Any) -> ModelSpec:
    return read_checkpoint(shape_of("gpt2", architectures=["GPT2LMHeadModel"], **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"scale_attn_weights": False}, "scale_attn_weights"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"n_head": 3}, "n_embd is 128, which 3 heads do not divide"),
        ({"n_head": 0}, "0 heads"),
        ({"n_layer": 0}, "n_layer is 0"),
        ({"activation_function": "tanh"}, "activation_function"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(**changes)


def test_positions_are_stored_in_full_precision_beside_quantized_matrices() -> None:
    positions = read().embedding.positions
    assert positions is not None
    assert Storage(quantization="int4").plan_tensor(positions).scheme is Scheme.FP32


def test_a_checkpoint_of_the_bare_model_with_its_masks_is_read(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = transformers.GPT2Config(**shape_of("gpt2"))
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): rows for name, rows in load_file(path).items()}
    masks = {f"h.{index}.attn.bias": torch.ones(1, 1, 8, 8) for index in range(2)}
    save_file(tensors | masks, path)
    with Checkpoint(tmp_path) as checkpoint:
        stored = checkpoint.read_rows("transformer.wpe.weight", 0, 256)
        assert torch.equal(stored, tensors["wpe.weight"])


def test_a_prompt_of_many_parts_has_the_positions_of_its_tokens(make_pair: Any) -> None:
    pair = make_pair("gpt2", "fp32", n_positions=600, max_position_embeddings=600)
    token_ids = [7, 9, 11] * 180
    options = load_options(num_blocks=80, block_size=8, threads=1, kv_dtype="fp32")
    runner = load_runner(pair.path, options)
    try:
        found, expected = as_tensor(runner.logits(token_ids)), pair.logits(token_ids)
    finally:
        runner.close()
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4
