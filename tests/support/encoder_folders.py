"""Tiny encoders as checkpoint folders, with a tokenizer of a dozen words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import transformers
from family_shapes import shape_of
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = {"bert": "Bert", "roberta": "XLMRoberta", "modernbert": "ModernBert"}
"""What transformers calls the models of a family."""
WORDS = (
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
)


def write_encoder(folder: Path, family: str = "bert", kind: str = "Model", **own: Any) -> None:
    """Write a checkpoint of random weights, which 16 bits hold exactly."""
    torch.manual_seed(9)
    config = CONFIG_MAPPING[family](**shape_of(family, **own))
    model = getattr(transformers, f"{CLASSES[family]}{kind}")(config)
    model.half().float().save_pretrained(folder)
    write_tokenizer(folder)


def write_tokenizer(folder: Path) -> None:
    words = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, sep_token="[SEP]", **special
    )
    whole.save_pretrained(folder)


def tell_pooling(folder: Path, config: Any) -> None:
    """Write what sentence-transformers keeps of how vectors are made."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
