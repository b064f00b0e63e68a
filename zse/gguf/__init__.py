"""GGUF files by the names that programs know: a model of llama.cpp's, imported on first use.

``zse.quantize.gguf`` is what reads the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, Unpack

from zse.engine.llama_cpp import LlamaCpp, instead
from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.errors import UnsupportedModelError, UsageError
from zse.models.resolve import is_gguf_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.options import LoadFields

__all__ = ["GGUFWrapper", "is_gguf_file"]


class GGUFWrapper:
    """A GGUF file, ready to generate once it is loaded. Use it as a context manager, or close it.

    Args:
        path: The file.

    Raises:
        UsageError: There is no file, or it is not GGUF.
    """

    def __init__(self, path: str | Path) -> None:
        if not is_gguf_file(path):
            raise UsageError(
                f"{path} is no GGUF file", hint="zse.LLM takes .zse files and checkpoints."
            )
        self._path = path
        self._llm: LLM | LlamaCpp | None = None

    def load(self, **options: Unpack[LoadFields]) -> Self:
        """Import the file into the cache, unless it is there, and load what came of it.

        What cannot be imported is run by llama.cpp, if the extra ``llama-cpp`` is installed.

        Raises:
            ConversionError: The file is damaged, or of an architecture that is not read.
            DeviceError: The device is absent or too small.
        """
        if self._llm is None:
            try:
                self._llm = LLM(self._path, **options)
            except UnsupportedModelError as error:
                context = options.get("max_context")
                self._llm = instead(self._path, error, max_context=context)
        return self

    def generate(
        self, prompt: str, max_tokens: int = 256, temperature: float = 0.7
    ) -> Iterator[str]:
        """Yield an answer as it grows; a file that was not loaded yet is.

        Raises:
            ZSEError: As ``LLM.stream``, when the first piece is asked for.
        """
        self.load()
        assert self._llm is not None
        if isinstance(self._llm, LlamaCpp):
            yield from self._llm.stream(prompt, max_tokens=max_tokens, temperature=temperature)
            return
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
        for delta in self._llm.stream(prompt, params):
            if delta.text:
                yield delta.text

    def close(self) -> None:
        """Give the memory back."""
        if self._llm is not None:
            self._llm.close()
            self._llm = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
