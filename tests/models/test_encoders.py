"""Vectors of encoders equal those of transformers, whatever else is read beside a text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import shape_of
from model_pairs import write_file

from zse.errors import UnsupportedModelError
from zse.format import ZSEReader
from zse.models.families import read_checkpoint
from zse.models.runner import load_runner, spec_of
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.spec import LayerSpec, ModelSpec

TEXTS = [[5, 9, 200], [7], list(range(3, 300)), [11, 12, 13, 14]]
"""One is longer than a tile of queries."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    torch.manual_seed(5)
    config = transformers.BertConfig(**shape_of("bert"))
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    path = tmp_path_factory.mktemp("bert") / "model.zse"
    spec = read_checkpoint(config.to_dict() | {"architectures": ["BertModel"]})
    write_file(path, spec, dict(model.state_dict()), "fp32")
    return path, model


def vectors(path: Path, pooling: Any = "mean", spec: ModelSpec | None = None) -> torch.Tensor:
    runner = load_runner(path, load_options(device="torch", num_blocks=1, threads=1), spec=spec)
    try:
        return torch.tensor(runner.vectors(TEXTS, pooling))
    finally:
        runner.close()


def expected(model: Any, pooling: str) -> torch.Tensor:
    with torch.no_grad():
        states = [model(torch.tensor([text])).last_hidden_state[0] for text in TEXTS]
    if pooling == "mean":
        return torch.stack([each.mean(0) for each in states])
    return torch.stack([each[0 if pooling == "first" else -1] for each in states])


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_vectors_match_transformers(pair: tuple[Path, Any], pooling: str) -> None:
    path, model = pair
    wanted = expected(model, pooling)
    error = (vectors(path, pooling) - wanted).abs().max() / wanted.abs().max()
    assert float(error) < 1e-4


def layers(change: Callable[[LayerSpec], LayerSpec]) -> Callable[[ModelSpec], ModelSpec]:
    return lambda spec: replace(spec, layers=tuple(map(change, spec.layers)))


def embedding(**changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    return lambda spec: replace(spec, embedding=replace(spec.embedding, **changes))


PECULIARITIES: dict[str, Callable[[ModelSpec], ModelSpec]] = {
    "learned positions": embedding(positions=None),
    "a type of tokens": embedding(token_types=None),
    "a norm of the embedding": embedding(norm=None),
    "norms of the stream behind attention": layers(
        lambda one: replace(one, mixer_stream_norm=None)
    ),
    "norms of the stream behind MLPs": layers(lambda one: replace(one, mlp_stream_norm=None)),
}


@pytest.mark.parametrize("name", PECULIARITIES)
def test_without_it_the_vectors_are_others(pair: tuple[Path, Any], name: str) -> None:
    path, model = pair
    with ZSEReader(path) as reader:
        spec = PECULIARITIES[name](spec_of(reader))
    wanted = expected(model, "mean")
    difference = (vectors(path, spec=spec) - wanted).abs().max() / wanted.abs().max()
    assert float(difference) > 1e-3


@pytest.mark.parametrize("device", ["cpu"])
def test_a_device_that_computes_no_encoder_says_so(pair: tuple[Path, Any], device: str) -> None:
    with pytest.raises(UnsupportedModelError, match="does not compute"):
        load_runner(pair[0], load_options(device=device, num_blocks=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_attention_heads": 3}, "3 heads do not divide"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read_checkpoint(shape_of("bert", architectures=["BertModel"], **changes))
