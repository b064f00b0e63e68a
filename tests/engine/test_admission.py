"""What can never fit is refused without being worked on."""

import pytest

from zse.engine.admission import LONGEST_TOKEN_CHARACTERS, check_text
from zse.errors import ContextLengthError


def test_a_text_longer_than_any_tokens_could_hold_is_refused():
    text = "a" * (8 * LONGEST_TOKEN_CHARACTERS)
    check_text(text[:-1], max_context=8, param="prompt")
    with pytest.raises(ContextLengthError, match="maximum context length is 8 tokens") as caught:
        check_text(text, max_context=8, param="prompt")
    assert caught.value.param == "prompt"
