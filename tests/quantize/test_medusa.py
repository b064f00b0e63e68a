"""Heads of Medusa become part of a file, or are refused with what is wrong about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from medusa_folders import head_tensors, write_checkpoint, write_heads

from zse.errors import CheckpointError, NotFoundError, RefusedError, UnsupportedModelError
from zse.format import ZSEReader
from zse.models.medusa import stored_heads
from zse.models.runner import spec_of
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADS: dict[str, Any] = {"medusa_num_heads": 3, "medusa_num_layers": 2}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def converted(checkpoint: Path, out: Path, medusa: Path | None, scheme: str = "int8") -> Path:
    convert_model(checkpoint, out, scheme, allow_no_tokenizer=True, medusa=medusa)
    return out


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_heads_lie_behind_the_model_and_no_start_reads_them(
    checkpoint: Path, tmp_path: Path, prefix: str
) -> None:
    heads = write_heads(tmp_path / "heads", head_tensors(checkpoint, 3, 2, prefix), **HEADS)
    plain = converted(checkpoint, tmp_path / "plain.zse", None)
    path = converted(checkpoint, tmp_path / "model.zse", heads)
    with ZSEReader(path) as reader, ZSEReader(plain) as without:
        names = [group.name for group in reader.header.groups]
        assert names[-3:] == ["medusa.0", "medusa.1", "medusa.2"]
        assert reader.header.loaded().groups == without.header.groups
        assert reader.header.provenance["medusa"]["heads"] == 3
        found = stored_heads(reader.header, spec_of(reader))
        assert [len(head.blocks) for head in found] == [2, 2, 2]
        assert reader.entry("medusa.1.blocks.1.bias").scheme.value == "fp32"
        assert stored_heads(without.header, spec_of(without)) == ()


def without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, *shape: int) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("1.0.linear.bias"), "no tensor 1.0.linear.bias"),
        (without("2.2.weight"), "no tensor 2.2.weight"),
        (without("0.1.linear.weight"), "no tensor 0.1.linear.weight"),
        (put("0.2.weight", 7, 5), "0.2.weight has shape"),
        (put("1.1.linear.bias", 5), "1.1.linear.bias has shape"),
        (put("5.2.weight", 4, 4), "no tensor 3.0.linear.weight"),
        (put("0.5.weight", 4, 4), "no place in heads that are alike"),
        (put("0.2.linear.weight", 4, 4), "0.2.linear.weight has shape"),
        (put("999.0.weight", 4, 4), "1000 heads"),
        (put("model.norm.weight", 4), "no place in a head"),
        (put("../evil.weight", 4), "no place in a head"),
        (lambda tensors: tensors.clear(), "0 heads"),
    ],
)
def test_heads_that_do_not_fit_are_refused_before_anything_is_written(
    checkpoint: Path, tmp_path: Path, change: Any, words: str
) -> None:
    tensors = head_tensors(checkpoint, 3, 2)
    change(tensors)
    heads = write_heads(tmp_path / "heads", tensors)
    with pytest.raises(CheckpointError, match=words) as caught:
        converted(checkpoint, tmp_path / "model.zse", heads)
    assert caught.value.hint
    assert not (tmp_path / "model.zse").exists()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"medusa_num_heads": 5}, "medusa_num_heads is 5; .* has 3"),
        ({"medusa_num_layers": "two"}, "medusa_num_layers is two"),
    ],
)
def test_another_number_of_heads_than_the_folder_says_is_refused(
    checkpoint: Path, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    heads = write_heads(tmp_path / "heads", head_tensors(checkpoint, 3, 2), **config)
    with pytest.raises(CheckpointError, match=words):
        converted(checkpoint, tmp_path / "model.zse", heads)


def test_heads_as_pickle_in_no_folder_or_quantized_are_refused(
    checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError):
        converted(checkpoint, tmp_path / "model.zse", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no medusa_lm_head"):
        converted(checkpoint, tmp_path / "model.zse", tmp_path / "empty")
    (tmp_path / "empty" / "medusa_lm_head.pt").write_bytes(b"pickle")
    with pytest.raises(RefusedError, match="pickle"):
        converted(checkpoint, tmp_path / "model.zse", tmp_path / "empty")
    tensors = {name: one.to(torch.int8) for name, one in head_tensors(checkpoint, 1).items()}
    heads = write_heads(tmp_path / "heads", tensors)
    with pytest.raises(UnsupportedModelError, match="dtype I8"):
        converted(checkpoint, tmp_path / "model.zse", heads)


def test_the_same_heads_give_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    heads = write_heads(tmp_path / "heads", head_tensors(checkpoint, 2), medusa_num_heads=2)
    first, second = (
        converted(checkpoint, tmp_path / name, heads, "int4").read_bytes() for name in ("a", "b")
    )
    assert first == second
