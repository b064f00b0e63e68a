"""Sample tokenizers, each trained once."""

from __future__ import annotations

import pytest
from tokenizer_samples import MAKERS


@pytest.fixture(scope="session")
def tokenizer_json():
    """A function from a kind's name to its tokenizer.json, each trained once."""
    made: dict[str, bytes] = {}

    def get(kind: str) -> bytes:
        if kind not in made:
            made[kind] = MAKERS[kind]().to_str().encode()
        return made[kind]

    return get
