"""A trained model's GGUF file, imported by zse, is the checkpoint that transformers makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from real_texts import real_lines

from zse.format.reader import ZSEReader
from zse.quantize.convert import convert_model
from zse.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from real_model import RealModel

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def imported(model: RealModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = model.checkpoint.parent / "model.gguf"
    target = tmp_path_factory.mktemp("gguf") / "model.zse"
    convert_model(source, target, "fp16")
    return target


def test_its_next_tokens_are_those_of_transformers(model: RealModel, imported: Path) -> None:
    from fidelity import measure

    distance = measure(imported, model.reference, num_tokens=256).distance
    assert distance is not None
    print(f"{model.name}: {distance}")
    assert distance.divergence_nats.value < 0.002
    assert distance.same_top.value > 0.97


def test_its_tokenizer_is_that_of_transformers(model: RealModel, imported: Path) -> None:
    with ZSEReader(imported) as reader:
        tokenizer = load_tokenizer(reader)
    specials = tuple(token.text for token in tokenizer.facts.added[:40])
    lines = real_lines(10_000, specials)
    differing = [one for one in lines if tokenizer.encode(one) != model.tokenizer.encode(one)]
    assert not differing, (len(differing), differing[:3])
