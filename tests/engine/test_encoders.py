"""An encoder's vectors, from a checkpoint folder to ``LLM.embed``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import shape_of
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from zse import LLM
from zse.errors import InvalidParameterError
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["Kites rise above the old harbor", "rise", "The old unheard of 🦄 kit"]
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "kit",
    "##es",
    "rise",
    "above",
    "the",
    "old",
    "har",
    "##bor",
]


def write_tokenizer(folder: Path) -> None:
    words = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, sep_token="[SEP]", **special
    )
    whole.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(9)
    found = tmp_path_factory.mktemp("encoder")
    transformers.BertModel(transformers.BertConfig(**shape_of("bert"))).save_pretrained(found)
    write_tokenizer(found)
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


@pytest.mark.parametrize(("mode", "row"), [("mean_tokens", None), ("cls_token", 0)])
def test_vectors_are_pooled_as_the_checkpoint_says(
    mode: str, row: int | None, folder: Path, tmp_path: Path
) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    convert_model(folder, tmp_path / "m.zse", "fp16")
    with LLM(tmp_path / "m.zse", threads=1) as llm:
        found: Any = torch.tensor([list(vector) for vector in llm.embed(TEXTS)])
    cosines = (found * expected(folder, row=row)).sum(1)
    assert float(cosines.min()) > 0.9999


def test_an_encoder_generates_nothing_and_embeds_no_empty_text(
    folder: Path, tmp_path: Path
) -> None:
    convert_model(folder, tmp_path / "m.zse")
    with LLM(tmp_path / "m.zse", threads=1) as llm:
        with pytest.raises(InvalidParameterError, match="an encoder, which writes no text"):
            llm.generate("rise")
        with pytest.raises(InvalidParameterError):
            llm.embed([[]])
