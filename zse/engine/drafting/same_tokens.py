"""Whether two models mean the same by the same numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zse.errors import UnsupportedModelError

if TYPE_CHECKING:
    from zse.format.model_file import ModelFile

_SECTION = "tokenizer.json"


def check_same_tokens(model: ModelFile, draft: ModelFile) -> None:
    """Refuse a draft model whose tokens are not those of the model that it drafts for.

    Raises:
        UnsupportedModelError: They are not, or a file does not say.
    """
    for file, whose in ((model, "the model"), (draft, "the draft model")):
        if not file.has_section(_SECTION):
            raise UnsupportedModelError(
                f"{whose} holds no {_SECTION}, so its tokens cannot be compared",
                hint="Convert both models from checkpoints with their tokenizers.",
            )
    if model.section_entry(_SECTION).sha256 == draft.section_entry(_SECTION).sha256:
        return
    own, other = _vocabulary(model), _vocabulary(draft)
    differing = [text for text in own.keys() | other.keys() if own.get(text) != other.get(text)]
    if differing:
        text = min(differing)
        raise UnsupportedModelError(
            f"the draft model has another tokenizer: {len(differing)} of its tokens and the "
            f"model's differ, such as {text[:40]!r}, which is {other.get(text)} there and "
            f"{own.get(text)} here",
            hint="Draft with a smaller model of the same family.",
        )


def _vocabulary(file: ModelFile) -> dict[str, int]:
    """Return the number of each token, added ones too."""
    definition: dict[str, Any] = json.loads(bytes(file.section(_SECTION)))
    found = definition.get("model", {}).get("vocab", {})
    if isinstance(found, list):  # of unigrams: pieces with their scores
        found = {piece[0]: number for number, piece in enumerate(found)}
    return {**found, **{one["content"]: one["id"] for one in definition.get("added_tokens", ())}}
