"""The same steps have the same answers, to the bit, each time that a model is opened on a GPU."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from mixed_steps import SHAPE, open_runner, steps
from random_files import BIASES, write_random_file

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu


def answers(path: Path, prefill_weights: str) -> list[Any]:
    """Return what a model that is opened anew answers, step by step."""
    with closing(open_runner(path, prefill_weights=prefill_weights)) as runner:
        return [runner.execute(batch) for batch in steps()]


@pytest.mark.parametrize("prefill_weights", ["auto", "make"])
@pytest.mark.parametrize("more", [{}, BIASES], ids=["usual", "biases"])
def test_a_model_that_is_opened_again_answers_as_before_to_the_bit(
    tmp_path: Path, more: dict[str, Any], prefill_weights: str
) -> None:
    path = tmp_path / "model.zse"
    write_random_file(path, "int4", **{**SHAPE, **more})
    first, second = (answers(path, prefill_weights) for _ in range(2))
    pairs = enumerate(zip(first, second, strict=True))
    unlike = [number for number, (once, again) in pairs if once != again]
    assert not unlike, f"steps {unlike} have other answers the second time"
