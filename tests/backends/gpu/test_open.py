"""What a start does while the weights are on their way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zse.backends.gpu.open import PROMPT_ROWS, prepare_prompts
from zse.options import load_options


@pytest.mark.parametrize(
    ("looks", "most", "expected"),
    [
        (2, 2048, list(PROMPT_ROWS[:2])),
        (99, 2048, list(PROMPT_ROWS)),
        (99, 64, [rows for rows in PROMPT_ROWS if rows <= 64]),
        (0, 2048, []),
    ],
)
def test_kernels_of_prompts_are_loaded_until_the_weights_have_arrived(looks, most, expected):
    class Arrival:
        looked = 0

        @property
        def has_arrived(self):
            self.looked += 1
            return self.looked > looks

    prepared = []
    backend = SimpleNamespace(prepare_prompt=lambda _, rows: prepared.append(rows))
    load = SimpleNamespace(options=load_options(max_batch_tokens=most), forward=None)
    prepare_prompts(backend, Arrival(), load)
    assert prepared == expected
