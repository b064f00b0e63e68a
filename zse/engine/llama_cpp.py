"""A GGUF file that zse does not import, run by llama.cpp through the package ``llama-cpp-python``.

It stands beside ``LLM`` with as much as a chat in this process needs. The server does without: it
has batches, limits and prefixes that llama.cpp's Python interface has no room for.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zse.errors import UnsupportedModelError, UsageError, needing
from zse.install import install_hint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

LOG = logging.getLogger("zse.engine")
EXTRA = "llama-cpp"


class LlamaCpp:
    """A model that llama.cpp loads and runs on this machine's processor.

    Args:
        path: The GGUF file.
        max_context: Longest sequence in tokens; 0: as long as the model was trained for.

    Raises:
        MissingDependencyError: llama-cpp-python is not installed.
        UsageError: llama.cpp does not load the file either.
    """

    def __init__(self, path: str | Path, *, max_context: int = 0) -> None:
        with needing(EXTRA, f"running {path} by llama.cpp"):
            library = import_module("llama_cpp")
        try:
            self._model: Any = library.Llama(model_path=str(path), n_ctx=max_context, verbose=False)
        except (ValueError, OSError, RuntimeError) as error:
            raise UsageError(f"llama.cpp does not load {path}: {error}") from error

    def stream(self, prompt: str, *, max_tokens: int, temperature: float) -> Iterator[str]:
        """Yield what follows a text, piece by piece."""
        chunks = self._model.create_completion(
            prompt, max_tokens=max_tokens, temperature=temperature, stream=True
        )
        for chunk in chunks:
            if text := chunk["choices"][0]["text"]:
                yield text

    def chat(
        self, messages: Sequence[Mapping[str, str]], values: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield the answer to a conversation, by the file's own template.

        Args:
            messages: Each with its role and content.
            values: Some of ``max_tokens``, ``temperature`` and ``seed``.
        """
        chunks = self._model.create_chat_completion(list(messages), stream=True, **values)
        for chunk in chunks:
            if text := chunk["choices"][0]["delta"].get("content"):
                yield text

    def close(self) -> None:
        """Give the memory back."""
        self._model.close()


def instead(path: str | Path, error: UnsupportedModelError, *, max_context: int | None) -> LlamaCpp:
    """Return a model that llama.cpp runs, because it cannot be imported; say so in the log.

    Raises:
        UnsupportedModelError: The same, with how llama.cpp is added, where it is not installed.
    """
    try:
        import_module("llama_cpp")
    except ImportError:
        hint = f"{error.hint} Or let llama.cpp run it. {install_hint(EXTRA)}".strip()
        raise UnsupportedModelError(error.message, hint=hint) from error
    LOG.warning("llama.cpp runs %s, which zse does not import: %s", path, error.message)
    return LlamaCpp(path, max_context=max_context or 0)
