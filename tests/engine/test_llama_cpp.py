"""A GGUF file that zse does not import is run by llama.cpp, where that is installed."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import pytest

from zse.cli.chat_backends import LlamaCppBackend, open_local
from zse.errors import CheckpointError, UnsupportedModelError, UsageError
from zse.gguf import GGUFWrapper
from zse.options import load_options

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = """
import pathlib


class Llama:
    def __init__(self, model_path, n_ctx, verbose):
        if pathlib.Path(model_path).read_bytes().endswith(b"worse"):
            raise ValueError("Failed to load model from file")
        self.n_ctx = n_ctx

    def create_completion(self, prompt, max_tokens, temperature, stream):
        for piece in (prompt, "", f" {max_tokens}", f" {temperature}"):
            yield {"choices": [{"text": piece}]}

    def create_chat_completion(self, messages, stream, **values):
        yield {"choices": [{"delta": {"role": "assistant"}}]}
        for piece in (messages[-1]["content"], f" {values}", f" {self.n_ctx}"):
            yield {"choices": [{"delta": {"content": piece}}]}

    def close(self):
        pass
"""


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole GGUF file of an architecture that nothing here knows."""
    import gguf

    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "rwkv9")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "m.gguf"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, which takes minutes to build."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "llama_cpp.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)


def test_without_the_extra_the_architecture_is_named_and_how_to_add_it(
    strange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(UnsupportedModelError, match="'rwkv9'") as caught:
        GGUFWrapper(strange).load()
    assert "qwen3moe" in caught.value.hint
    assert "[llama-cpp]" in caught.value.hint


@pytest.mark.usefixtures("installed")
def test_a_wrapper_falls_back_and_says_why(strange: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "zse.engine"), GGUFWrapper(strange) as wrapper:
        assert list(wrapper.generate("Hello", 3, 0.5)) == ["Hello", " 3", " 0.5"]
    assert "llama.cpp runs" in caplog.text
    assert "rwkv9" in caplog.text


@pytest.mark.usefixtures("installed")
def test_a_chat_falls_back(strange: Path) -> None:
    load = load_options(max_context=64)
    backend = open_local(str(strange), load, progress=lambda *_: None)
    assert isinstance(backend, LlamaCppBackend)
    pieces = list(backend.answer([{"role": "user", "content": "Hello"}], {"seed": 1}))
    assert pieces == ["Hello", " {'seed': 1}", " 64"]


@pytest.mark.usefixtures("installed")
def test_what_is_damaged_is_no_matter_for_llama_cpp(strange: Path) -> None:
    strange.write_bytes(strange.read_bytes()[:40])
    with pytest.raises(CheckpointError, match="not a whole GGUF file"):
        GGUFWrapper(strange).load()


@pytest.mark.usefixtures("installed")
def test_what_llama_cpp_does_not_load_either_is_said(strange: Path) -> None:
    with strange.open("ab") as file:
        file.write(b"worse")
    with pytest.raises(UsageError, match=r"llama\.cpp does not load"):
        GGUFWrapper(strange).load()
