"""Filling a gap in a text: the order and the tokens that a model was trained with.

The form is found from the tokenizer's own control tokens, so no list of models is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from zse.text.tokenizer import Tokenizer


@record
class FillForm:
    """One family's way of asking for what stands between two texts."""

    prefix: str
    """Token before the text that comes before the gap."""
    suffix: str
    """Token before the text that comes behind it."""
    middle: str
    """Token behind both, where the answer begins; empty where there is none."""
    suffix_first: bool = False
    ends: tuple[str, ...] = ()
    """Tokens that end an answer, besides the model's own end of a text."""


_REPOSITORY = ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>")
FILL_FORMS = (
    # Qwen2.5-Coder, CodeGemma
    FillForm(
        prefix="<|fim_prefix|>", suffix="<|fim_suffix|>", middle="<|fim_middle|>", ends=_REPOSITORY
    ),
    # StarCoder, StarCoder2, Granite Code
    FillForm(
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        ends=("<fim_pad>", "<file_sep>", "<repo_name>"),
    ),
    # DeepSeek-Coder
    FillForm(prefix="<｜fim▁begin｜>", suffix="<｜fim▁hole｜>", middle="<｜fim▁end｜>"),
    # Code Llama
    FillForm(prefix="▁<PRE>", suffix="▁<SUF>", middle="▁<MID>", ends=("▁<EOT>",)),
    # Codestral
    FillForm(prefix="[PREFIX]", suffix="[SUFFIX]", middle="", suffix_first=True),
)


@record
class Gap:
    """A prompt that asks for what stands in a gap."""

    token_ids: list[int]
    end_token_ids: tuple[int, ...]
    """What ends the answer, besides the model's own end tokens."""


def fill_form_of(tokenizer: Tokenizer) -> FillForm | None:
    """Return the form whose tokens a tokenizer has; None where it has none of them whole."""
    known = {token.text for token in tokenizer.facts.added}
    for form in FILL_FORMS:
        if {form.prefix, form.suffix, form.middle} - {""} <= known:
            return form
    return None


def gap_between(tokenizer: Tokenizer, form: FillForm, before: str, behind: str) -> Gap:
    """Return the prompt for what stands between two texts, which write no control tokens."""
    ids = {token.text: token.token_id for token in tokenizer.facts.added}

    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False, parse_special=False)

    first = [ids[form.prefix], *plain(before)]
    second = [ids[form.suffix], *plain(behind)]
    parts = second + first if form.suffix_first else first + second
    end = [ids[form.middle]] if form.middle else []
    return Gap(
        token_ids=[*tokenizer.facts.prefix_ids, *parts, *end],
        end_token_ids=tuple(ids[text] for text in form.ends if text in ids),
    )
