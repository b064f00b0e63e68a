"""What a start does while the weights are on their way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zse.backends.gpu.open import PROMPT_ROWS, prepare
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
    backend = SimpleNamespace(prepare_prompt=lambda _, rows: iter([prepared.append(rows)]))
    load = SimpleNamespace(
        options=load_options(max_batch_tokens=most),
        forward=None,
        spec=SimpleNamespace(is_encoder=True),
    )
    assert len(list(prepare(backend, Arrival(), load))) == len(prepared)  # one at a time
    assert prepared == expected


@pytest.mark.parametrize(
    ("arrived", "captures_first", "is_encoder", "expected"),
    [
        (True, False, False, [32]),
        (False, False, False, [32, "captured", *PROMPT_ROWS]),
        (True, True, False, ["captured"]),
        (False, True, False, ["captured", *PROMPT_ROWS]),
        (False, False, True, list(PROMPT_ROWS)),
    ],
)
def test_what_a_prompt_needs_comes_first_and_a_capture_only_while_weights_are_awaited(
    arrived, captures_first, is_encoder, expected
):
    done = []
    backend = SimpleNamespace(
        prepare_prompt=lambda _, rows: iter([done.append(rows)]),
        warm=lambda _: done.append("captured"),
        begins_with_capture=captures_first,
    )
    load = SimpleNamespace(
        options=load_options(), forward=None, spec=SimpleNamespace(is_encoder=is_encoder)
    )
    for _ in prepare(backend, SimpleNamespace(has_arrived=arrived), load):
        pass
    assert done == expected
