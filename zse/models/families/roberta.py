"""RoBERTa and XLM-RoBERTa: BERT whose positions begin behind the number of its padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.models.families.bert import read_bert

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = (
    "XLMRobertaModel",
    "XLMRobertaForSequenceClassification",
    "RobertaModel",
    "RobertaForSequenceClassification",
)
MODELS = "BGE-M3, multilingual E5 and other embedders and rerankers made of RoBERTa"


def read(config: ConfigJSON) -> ModelSpec:
    first, rows = config.integer("pad_token_id", 1) + 1, config.integer("max_position_embeddings")
    if not 0 < first < rows:
        raise UnsupportedModelError(
            f"pad_token_id is {first - 1}: positions would begin at {first} of {rows}"
        )
    return read_bert(
        config,
        "roberta",
        classifier=("classifier.dense", "classifier.out_proj"),
        first_position=first,
    )
