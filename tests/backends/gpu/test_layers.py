"""Layers of every kind on the GPU backend, in the interpreter: the logits of torch."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest
import torch
from any_layers import write_model
from attention_models import bare, beside, capped, gates, mixed, sinks, told
from family_shapes import shape_of
from interpreted_runner import open_runner
from logits import as_tensor
from model_pairs import ARCHITECTURES, CONFIG_CLASSES

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.kv.windows import WindowTable
from zse.models.decoder import logits_of
from zse.models.families import read_checkpoint
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.runner import ModelRunner

TOLERANCE = 2e-2
TOKENS = [5, 17, 70, 33, 9, 200]


@pytest.mark.parametrize(
    ("make", "kv_dtype"),
    [
        (sinks, "int8"),
        (gates, "int8"),
        (capped, "bf16"),
        (bare, "bf16"),
        (beside, "bf16"),
        (told, "bf16"),
    ],
)
def test_a_prompt_and_a_token_after_it_have_the_logits_of_torch(
    make: Any, kv_dtype: str, tmp_path: Path
) -> None:
    spec, path = make(), tmp_path / "model.zse"
    write_model(path, spec, "int8")
    torch_runner = load_runner(path, load_options(device="torch", num_blocks=8), spec=spec)
    expected = as_tensor(torch_runner.logits(TOKENS))
    torch_runner.close()
    runner = open_runner(path, spec=spec, kv_dtype=kv_dtype)
    found = as_tensor(runner.logits(TOKENS, chunk_tokens=len(TOKENS) - 1))
    runner.close()
    assert float((found - expected).norm() / expected.norm()) < TOLERANCE


def logits_of_chunk(runner: ModelRunner, tokens: list[int], start: int) -> torch.Tensor:
    """Return the logits of a chunk whose layers have blocks of their own if they have a window."""
    backend, windows = runner._backend, [WindowTable(blocks=[5])]
    chunk = SequenceChunk(
        0, tokens, start, [2], kind_of(len(tokens)), wants_logits=True, windows=windows
    )
    step = backend.begin(StepBatch(chunks=[chunk], sampling=[()]))
    return as_tensor(backend.join_rows([logits_of(backend, runner.spec, step)]))


def test_layers_with_a_window_have_blocks_of_their_own(tmp_path: Path) -> None:
    spec, path = mixed(), tmp_path / "model.zse"
    write_model(path, spec, "int8")
    torch_runner = load_runner(path, load_options(device="torch", num_blocks=8), spec=spec)
    expected = as_tensor(torch_runner.logits(TOKENS))
    torch_runner.close()
    runner = open_runner(path, spec=spec)
    cache = runner._backend._memory.sequences.cache  # type: ignore[attr-defined]
    pieces = {
        layer: list(cache.layout.layers[layer].pieces(cache.layers[layer])) for layer in (0, 1)
    }
    for layer, own in ((0, 5), (1, 2)):
        for address, length in pieces[layer]:
            for block in {2, 5} - {own}:
                ctypes.memset(address + block * length, 0xFF, length)  # no numbers
    found = torch.cat(
        (logits_of_chunk(runner, TOKENS[:5], 0), logits_of_chunk(runner, TOKENS[5:], 5))
    )
    assert float((found - expected).norm() / expected.norm()) < TOLERANCE
    for layer, own in ((0, 5), (1, 2)):
        for address, length in pieces[layer]:
            for block in {2, 5} - {own}:
                assert ctypes.string_at(address + block * length, length) == b"\xff" * length
    runner.close()


def test_positions_that_were_learned_have_the_logits_of_torch(tmp_path: Path) -> None:
    own = {"num_attention_heads": 1, "num_hidden_layers": 1, "n_inner": 64}
    config = CONFIG_CLASSES["gpt2"](**shape_of("gpt2", hidden_size=64, **own))
    spec = read_checkpoint(config.to_dict() | {"architectures": [ARCHITECTURES["gpt2"]]})
    path = tmp_path / "model.zse"
    write_model(path, spec, "int8")
    torch_runner = load_runner(path, load_options(device="torch", num_blocks=8), spec=spec)
    expected = as_tensor(torch_runner.logits(TOKENS))
    torch_runner.close()
    runner = open_runner(path, spec=spec)
    found = as_tensor(runner.logits(TOKENS, chunk_tokens=len(TOKENS) - 1))
    runner.close()
    assert float((found - expected).norm() / expected.norm()) < TOLERANCE
