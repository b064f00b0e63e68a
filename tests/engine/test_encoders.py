"""An encoder's vectors, from a checkpoint folder to ``LLM.embed``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from encoder_folders import tell_pooling, write_encoder

from zse import LLM
from zse.errors import InvalidParameterError, UnsupportedModelError
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["Kites rise above the old harbor", "rise", "The old unheard of 🦄 kit"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("encoder")
    write_encoder(found)
    return found


def expected(folder: Path, *, row: int | None) -> torch.Tensor:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    for text in TEXTS:
        with torch.no_grad():
            states = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        vectors.append(states.mean(0) if row is None else states[row])
    return torch.nn.functional.normalize(torch.stack(vectors), dim=1)


@pytest.mark.parametrize(
    ("told", "row"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, None),
        ({"pooling_mode_cls_token": True}, 0),
        ({"pooling_mode": "lasttoken"}, -1),
        ({"pooling_mode": ["cls"]}, 0),
        ({}, None),
    ],
)
def test_vectors_are_pooled_as_the_checkpoint_says(
    told: dict[str, Any], row: int | None, folder: Path, tmp_path: Path
) -> None:
    tell_pooling(folder, told)
    convert_model(folder, tmp_path / "m.zse", "fp16")
    with LLM(tmp_path / "m.zse", threads=1) as llm:
        found: Any = torch.tensor([list(vector) for vector in llm.embed(TEXTS)])
    cosines = (found * expected(folder, row=row)).sum(1)
    assert float(cosines.min()) > 0.9999


def test_an_encoder_generates_nothing_and_embeds_no_empty_text(
    folder: Path, tmp_path: Path
) -> None:
    tell_pooling(folder, {})
    convert_model(folder, tmp_path / "m.zse")
    with LLM(tmp_path / "m.zse", threads=1) as llm:
        with pytest.raises(InvalidParameterError, match="an encoder, which writes no text"):
            llm.generate("rise")
        with pytest.raises(UnsupportedModelError, match="no logits"):
            llm.logits([5])
        with pytest.raises(InvalidParameterError):
            llm.embed([[]])
        with pytest.raises(InvalidParameterError, match="token id 320"):
            llm.embed([[320]])
        assert len(llm.embed(TEXTS)) == 3  # what was refused left nothing behind


@pytest.mark.parametrize(
    ("pooling", "modules", "message"),
    [
        ({"pooling_mode_max_tokens": True}, None, "pools by max_tokens; expected one of cls_token"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            None,
            "pools by mean_tokens, cls_token",
        ),
        ({"pooling_mode": {"a": 1}}, None, "pools by {'a': 1}"),
        ([], None, "is no JSON object"),
        ({}, ["Transformer", "Pooling", "Dense", "Normalize"], "lists Dense behind the model"),
        ({}, 5, "is no JSON list"),
    ],
)
def test_vectors_that_nothing_here_makes_are_refused_at_conversion(
    pooling: Any, modules: Any, message: str, folder: Path, tmp_path: Path
) -> None:
    tell_pooling(folder, pooling)
    listed = modules
    if isinstance(modules, list):
        listed = [{"type": f"sentence_transformers.models.{name}"} for name in modules]
    (folder / "modules.json").write_text(json.dumps([] if modules is None else listed))
    try:
        with pytest.raises(UnsupportedModelError) as caught:
            convert_model(folder, tmp_path / "m.zse")
        assert message in str(caught.value)
        assert not (tmp_path / "m.zse").exists()
    finally:
        (folder / "modules.json").unlink()
