"""What cannot guess for itself is refused before weights are read, with what to choose instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from guessing_models import make_guessing_model

from zse.engine.drafting.checks import check_own_guesses
from zse.engine.loading import load_model
from zse.errors import FormatError, UnsupportedModelError, UsageError
from zse.format.reader import ZSEReader
from zse.models.runner import spec_of
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path


def check(path: Path, speculate: str, **values: Any) -> None:
    options = load_options(**{"device": "cpu", **values}, speculate=speculate)
    with ZSEReader(path) as reader:
        check_own_guesses(reader.header, spec_of(reader), options)


@pytest.mark.parametrize("num_layers", [2, 99])
def test_as_many_first_layers_as_there_are_guess_nothing(num_layers: int, random_zse: Path) -> None:
    check(random_zse, "early-exit", early_exit_layers=1)
    with pytest.raises(UsageError, match=f"{num_layers} first layers are to guess") as caught:
        check(random_zse, "early-exit", early_exit_layers=num_layers)
    assert "--early-exit-layers" in caught.value.hint


def test_first_layers_with_states_guess_nothing(random_zse: Path, tmp_path: Path) -> None:
    path = make_guessing_model(tmp_path, "qwen3_5").path
    check(path, "mtp")
    with pytest.raises(UnsupportedModelError, match="have states") as caught:
        check(path, "early-exit")
    assert "--speculate mtp" in caught.value.hint
    check(path, "mtp", device="cuda")
    check(random_zse, "early-exit", device="cuda")


def test_a_file_without_a_head_says_so_and_is_not_loaded(
    random_zse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zse.engine.loading.load_runner", lambda *_, **__: pytest.fail("loaded"))
    options = load_options(device="cpu", threads=1, num_blocks=8, speculate="mtp")
    with pytest.raises(UsageError, match="no head that guesses") as caught:
        load_model(random_zse, options, load_settings())
    assert "--speculate suffix" in caught.value.hint


def test_a_head_whose_tensors_do_not_fit_is_refused(tmp_path: Path) -> None:
    path = make_guessing_model(tmp_path, "qwen3_5").path
    other = make_guessing_model(tmp_path / "other", "qwen3_5", intermediate_size=64).spec
    with ZSEReader(path) as reader, pytest.raises(FormatError, match=r"mtp\.0\."):
        check_own_guesses(reader.header, other, load_options(device="cpu", speculate="mtp"))
