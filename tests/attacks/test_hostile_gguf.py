"""A GGUF file whose bytes were changed is read or refused by name, and never anything else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from zse.errors import CheckpointError, ZSEError
from zse.quantize.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, ROWS = 32, 32


def write_model(path: Path, architecture: str, **more: np.ndarray) -> Path:
    """Write a model of one layer, with a tokenizer of a few letters."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(ROWS)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    if architecture == "qwen3moe":
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(ROWS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", "c"])
    writer.add_token_types([1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    tensors = {
        f"blk.0.{part}.weight": np.ones(WIDTH, np.float32) for part in ("attn_norm", "ffn_norm")
    }
    tensors |= {"output_norm.weight": np.ones(WIDTH, np.float32)}
    tensors |= {"token_embd.weight": np.ones((4, WIDTH), np.float32)}
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensors[f"blk.0.{part}.weight"] = np.ones((ROWS, WIDTH), np.float32)
    for name, values in (tensors | more).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_all(path: Path) -> None:
    """Open a model, and read every row of every tensor and every text."""
    with Checkpoint(path) as checkpoint:
        for name in checkpoint.place.names():
            checkpoint.place.read(name)
        for group in checkpoint.plan:
            for weight in group.weights:
                for piece in weight.pieces():
                    checkpoint.read_rows(piece.name, 0, checkpoint.tensor(piece.name).num_rows)


def test_the_model_is_read_as_long_as_nobody_changed_it(tmp_path: Path) -> None:
    read_all(write_model(tmp_path / "m.gguf", "llama"))


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_end_in_an_error_of_ours_or_in_none(tmp_path: Path, seed: int) -> None:
    source = write_model(tmp_path / "m.gguf", "llama")
    data, draw = source.read_bytes(), random.Random(seed)
    header_bytes = gguf.GGUFReader(source).data_offset
    for _ in range(12):
        changed = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 8))):
            changed[draw.randrange(4, header_bytes)] = draw.choice((0, 1, 0x7F, 0xFF))
        source.write_bytes(
            changed[: draw.choice((len(data), len(data), draw.randrange(len(data))))]
        )
        try:
            read_all(source)
        except ZSEError as error:
            assert error.message  # noqa: PT017 - none at all is as good


def test_a_stack_that_claims_many_experts_is_refused(tmp_path: Path) -> None:
    stack = np.ones((5000, 1, WIDTH), np.float32)
    source = write_model(tmp_path / "m.gguf", "qwen3moe", **{"blk.0.ffn_up_exps.weight": stack})
    with pytest.raises(CheckpointError, match="has 5000 experts"):
        read_all(source)


@pytest.mark.parametrize("name", ["ssm_a", "ssm_conv1d.weight"])
def test_a_state_without_its_settings_is_refused(tmp_path: Path, name: str) -> None:
    tensors = {"blk.0.ssm_a": np.ones(4, np.float32), f"blk.0.{name}": np.ones(4, np.float32)}
    source = write_model(tmp_path / "m.gguf", "qwen35", **tensors)
    with pytest.raises(CheckpointError, match="ssm"):
        read_all(source)
