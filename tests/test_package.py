"""The names that ``import zse`` offers: all of them seen, none of them imported."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import zse
from zse.errors import NotFoundError
from zse.settings import subprocess_environment

ROOT = str(Path(__file__).parents[1])


def run(program: str) -> str:
    environment = subprocess_environment(PYTHONPATH=ROOT)
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout


@pytest.mark.parametrize("name", sorted(zse._LAZY))
def test_every_public_name_is_its_modules(name: str) -> None:
    assert getattr(zse, name) is getattr(import_module(zse._LAZY[name]), name)
    assert name in zse.__all__


def test_all_names_stand_in_dir_and_nothing_was_imported_for_it() -> None:
    assert {*zse._LAZY, "__version__"} == set(zse.__all__)
    assert [name for name in dir(zse) if not name.startswith("_")] == sorted(
        {*zse.__all__} - {"__version__"}
    )
    found = run("import sys, zse; dir(zse); print(*(n for n in sys.modules if n[:4] == 'zse.'))")
    assert found.split() == []


def test_help_shows_every_public_name() -> None:
    shown = pydoc.plain(pydoc.render_doc(zse))
    assert [name for name in zse._LAZY if f" {name}" not in shown] == []


def test_without_torch_help_shows_what_there_is() -> None:
    program = "import sys; sys.modules['torch'] = None; "  # as if it were not installed
    program += "import pydoc, zse; print(pydoc.plain(pydoc.render_doc(zse)))"
    shown = run(program)
    assert "class LLM" in shown
    assert "convert_model(" not in shown


def test_type_checkers_read_the_annotations() -> None:
    assert Path(zse.__file__).with_name("py.typed").is_file()


def test_a_shell_completes_the_names() -> None:
    program = "import rlcompleter, zse; print(rlcompleter.Completer(vars()).attr_matches('zse.LL'))"
    assert "zse.LLM" in run(program)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'LMM'"):
        zse.LMM  # noqa: B018


def test_whatever_names_a_model_opens_its_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path))
    with zse.ZSEReader("tiny") as reader:
        assert reader.header.architecture == "llama"
        assert reader.path.is_relative_to(tmp_path)
        with zse.ZSEReader(str(reader.path)) as again:
            assert again.header == reader.header
    model, _, facts = zse.load_zse_model("tiny", device="cpu")
    assert facts["path"] == str(reader.path)
    assert model.config.model_type == "llama"
    with pytest.raises(NotFoundError, match="there is no file"):
        zse.ZSEReader(tmp_path / "tiny")  # a path is a path
    with pytest.raises(NotFoundError, match="there is no model 'tinny'") as caught:
        zse.ZSEReader("tinny")
    assert caught.value.hint == "Did you mean tiny?"
