"""Encoders on the GPU backend, in the interpreter: the vectors of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from any_layers import write_model
from family_shapes import shape_of
from interpreted_runner import open_runner
from model_pairs import ARCHITECTURES, CONFIG_CLASSES

from zse.errors import UnsupportedModelError
from zse.models.families import read_checkpoint
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = 2e-2
TEXTS = [[5, 9, 200, 31, 17, 40, 41, 90, 7], [11]]
SECOND_FROM = [4, None]
OWN = {"modernbert": {"num_hidden_layers": 3, "local_attention": 12}}
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
}


def write_encoder(path: Path, family: str, *, scores: bool = False, **own: Any) -> None:
    """Write a random encoder, whose matrices are INT8; with a classifier if it ``scores``."""
    if scores:
        own["num_labels"] = 1
    config = CONFIG_CLASSES[family](**shape_of(family, **{**SHAPE, **own}))
    name = ARCHITECTURES[family]
    if scores:
        name = name.removesuffix("Model") + "ForSequenceClassification"
    spec = read_checkpoint(config.to_dict() | {"architectures": [name]})
    write_model(path, spec, "int8")


def check(path: Path, *, pooling: Any = "mean", tolerance: float = TOLERANCE) -> None:
    reference = load_runner(path, load_options(device="torch", num_blocks=1))
    expected = torch.tensor(reference.vectors(TEXTS, pooling, SECOND_FROM))
    reference.close()
    runner = open_runner(path, max_batch_tokens=32)
    found = torch.tensor(runner.vectors(TEXTS, pooling, SECOND_FROM))
    runner.close()
    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(errors.max()) < tolerance


def test_bert_has_the_vectors_of_torch(tmp_path: Path) -> None:
    write_encoder(tmp_path / "model.zse", "bert")
    check(tmp_path / "model.zse")


def test_heads_of_32_columns_and_positions_that_begin_later_have_the_vectors_of_torch(
    tmp_path: Path,
) -> None:
    write_encoder(tmp_path / "model.zse", "roberta", num_attention_heads=2)
    check(tmp_path / "model.zse", pooling="first")


def test_windows_to_both_sides_have_the_vectors_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "model.zse"
    own = {"layer_types": ["sliding_attention"], "local_attention": 4, "num_hidden_layers": 1}
    write_encoder(path, "modernbert", **own)
    check(path, pooling="last")


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("bert", {}),
        ("modernbert", {"num_hidden_layers": 1, "layer_types": ["full_attention"]}),
    ],
)
def test_a_reranker_has_the_scores_of_torch(
    family: str, own: dict[str, Any], tmp_path: Path
) -> None:
    write_encoder(tmp_path / "model.zse", family, scores=True, **own)
    check(tmp_path / "model.zse", pooling="first")


def test_heads_that_no_kernel_takes_are_refused(tmp_path: Path) -> None:
    write_encoder(tmp_path / "model.zse", "bert", hidden_size=128)
    with pytest.raises(UnsupportedModelError, match="of heads that no encoder has"):
        open_runner(tmp_path / "model.zse")


@pytest.mark.gpu
@pytest.mark.parametrize("pooling", ["mean", "first", "last", "scores"])
@pytest.mark.parametrize(
    ("family", "heads"), [("bert", 4), ("bert", 8), ("roberta", 8), ("modernbert", 4)]
)
def test_vectors_on_a_gpu_are_those_of_torch(
    family: str, heads: int, pooling: Any, tmp_path: Path
) -> None:
    path, settings = tmp_path / "model.zse", load_settings()
    own = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": heads}
    layers = {} if family == "modernbert" else {"num_hidden_layers": 3}
    scores = pooling == "scores"
    pooling = "first" if scores else pooling
    write_encoder(path, family, scores=scores, **own, **layers, **OWN.get(family, {}))
    texts = [list(range(3, 3 + length)) for length in (300, 1, 64, 17, 129)]
    seconds = [100, None, 30, None, 128]
    reference = load_runner(path, load_options(device="torch", num_blocks=1))
    expected = torch.tensor(reference.vectors(texts, pooling, seconds))
    reference.close()
    options = load_options(device="cuda", kernels=settings.serve.load.device.kernels)
    runner = load_runner(path, options, cache_dir=settings.cache_dir)
    for _ in range(2):  # the second time memory is that of the first
        found = torch.tensor(runner.vectors(texts, pooling, seconds))
        sizes = expected.norm() if scores else expected.norm(dim=1)
        errors = (found - expected).norm(dim=1) / sizes
        # A score is one number: what is rounded in it has no other columns to be averaged over.
        assert float(errors.max()) < TOLERANCE * (1.5 if scores else 1.0)
    runner.close()
