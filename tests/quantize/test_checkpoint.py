from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from zse.errors import CheckpointError, NotFoundError, RefusedError, UnsupportedModelError
from zse.quantize.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(llama_folder, tmp_path / "model")


@pytest.fixture
def sharded(make_checkpoint, tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "sharded", shards=3)


def edit_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) drop tensors; ``__`` in a keyword stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")


def test_rows_are_those_of_the_file(llama_folder: Path) -> None:
    expected = load_file(llama_folder / "model.safetensors")["model.layers.1.mlp.up_proj.weight"]
    with Checkpoint(llama_folder) as checkpoint:
        found = checkpoint.read_rows("model.layers.1.mlp.up_proj.weight", 10, 20)
    assert torch.equal(found, expected[10:20])


def test_shards_are_one_checkpoint(sharded: Path) -> None:
    with Checkpoint(sharded) as checkpoint:
        pieces = [one for group in checkpoint.plan for t in group.weights for one in t.pieces()]
        for piece in pieces:
            assert checkpoint.tensor(piece.name).shape == piece.shape


def test_bare_model_without_prefix_is_read(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): value for name, value in tensors.items()}
    del bare["lm_head.weight"]
    save_file(bare, folder / "model.safetensors")
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.tensor("model.norm.weight").shape == (128,)


def test_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 shards.*model-00002-of-00003"):
        Checkpoint(sharded)


def test_index_that_lies_about_a_shard_is_found(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first, *_, second = index["weight_map"]
    index["weight_map"][first] = index["weight_map"][second]
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="the index says"):
        Checkpoint(sharded)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/x.safetensors", "x.bin", 3])
def test_index_may_not_point_elsewhere(sharded: Path, shard: object) -> None:
    (sharded / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"lm_head.weight": shard}})
    )
    with pytest.raises(CheckpointError, match="same folder"):
        Checkpoint(sharded)


def test_wrong_shape_shows_both_shapes(folder: Path) -> None:
    edit_tensors(folder, model__norm__weight=torch.zeros(64, dtype=torch.bfloat16))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \[64\].*\[128\]"):
        Checkpoint(folder)


def test_missing_tensor_is_named(folder: Path) -> None:
    edit_tensors(folder, lm_head__weight=None)
    with pytest.raises(CheckpointError, match=r"no tensor lm_head\.weight"):
        Checkpoint(folder)


def test_tensor_without_a_place_is_refused(folder: Path) -> None:
    edit_tensors(folder, model__layers__0__self_attn__o_proj__bias=torch.zeros(128))
    with pytest.raises(CheckpointError, match=r"no place.*o_proj\.bias"):
        Checkpoint(folder)


def test_rotary_table_of_old_tools_is_ignored(folder: Path) -> None:
    edit_tensors(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(16))
    Checkpoint(folder).close()


def test_unknown_architecture_is_named(folder: Path) -> None:
    edit_config(folder, architectures=["MambaForCausalLM"])
    with pytest.raises(UnsupportedModelError, match="MambaForCausalLM"):
        Checkpoint(folder)


def test_quantized_tensor_type_is_refused(folder: Path) -> None:
    edit_tensors(folder, lm_head__weight=torch.zeros(96, 128, dtype=torch.int8))
    with pytest.raises(UnsupportedModelError, match="dtype I8"):
        Checkpoint(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_is_refused_with_the_reason(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(RefusedError, match="runs whatever code") as caught:
        Checkpoint(folder)
    assert "safetensors" in caught.value.hint


def test_folder_without_weights_says_so(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds neither"):
        Checkpoint(folder)


def test_folder_without_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no config\.json"):
        Checkpoint(tmp_path)


def test_malformed_config_is_a_checkpoint_error(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        Checkpoint(folder)
