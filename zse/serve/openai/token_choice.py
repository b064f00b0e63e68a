"""Which tokens an answer may be made of: biases, bans, and lists of what alone is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.engine.admission import LONGEST_TOKEN_CHARACTERS
from zse.errors import InvalidParameterError
from zse.serve.http.errors import BadRequestError, UnsupportedParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.text.grammar.spec import GrammarSpec
    from zse.text.tokenizer import Tokenizer

MAX_BAD_WORDS = 64
MAX_ALLOWED_TOKENS = 16384


def token_biases(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    """Return biases by token id.

    Raises:
        InvalidParameterError: A key is no token id of the model.
    """
    result = {}
    for key, value in biases.items():
        # isascii: int() also takes digits of other scripts, underscores and spaces.
        token_id = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else -1
        if not 0 <= token_id < vocab_size:
            raise InvalidParameterError(
                f"Invalid key in 'logit_bias': {key[:40]!r} is no token id of this model "
                f"(0 to {vocab_size - 1}).",
                param="logit_bias",
            )
        result[token_id] = value
    return result


def single_tokens(words: Sequence[str], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that are these words, at the beginning of a text and behind a space.

    Raises:
        BadRequestError: There are too many, or one has no length or too much of it.
        UnsupportedParameterError: A word is several tokens of the model.
    """
    if len(words) > MAX_BAD_WORDS:
        raise BadRequestError(
            f"'bad_words' holds {len(words)} words, expected at most {MAX_BAD_WORDS}.",
            param="bad_words",
        )
    found: dict[int, None] = {}
    for index, word in enumerate(words):
        if not 0 < len(word) <= LONGEST_TOKEN_CHARACTERS:
            raise BadRequestError(
                f"'bad_words[{index}]' has {len(word)} characters, "
                f"expected 1 to {LONGEST_TOKEN_CHARACTERS}.",
                param="bad_words",
            )
        forms = [
            tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            for text in (word, f" {word.lstrip()}")
        ]
        single = [ids[0] for ids in forms if len(ids) == 1]
        if not single:
            raise UnsupportedParameterError(
                "bad_words",
                f"The word {index} is {len(forms[0])} tokens of this model, and only words that "
                "are one token can be kept out.",
            )
        found |= dict.fromkeys(single)
    return tuple(found)


def form_of_tokens(
    token_ids: Sequence[int], vocab_size: int, other: GrammarSpec | None
) -> GrammarSpec:
    """Return the form of answers made of some tokens alone.

    Raises:
        BadRequestError: They are none of the model, too many, or another form is asked for, too.
    """
    if other is not None:
        raise BadRequestError(
            f"'allowed_token_ids' and '{other.param}' both ask for a form; one answer has one.",
            param="allowed_token_ids",
        )
    count = len(token_ids)
    if (
        not 0 < count <= MAX_ALLOWED_TOKENS
        or not 0 <= min(token_ids) <= max(token_ids) < vocab_size
    ):
        raise BadRequestError(
            f"'allowed_token_ids' holds {count} token ids, expected 1 to {MAX_ALLOWED_TOKENS}, "
            f"each from 0 to {vocab_size - 1}.",
            param="allowed_token_ids",
        )
    from zse.text.grammar.spec import only_tokens  # with what only answers in a form need

    return only_tokens(token_ids)
