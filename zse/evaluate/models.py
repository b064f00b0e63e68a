"""Whatever says logits: a .zse file in the engine, a checkpoint in transformers in float32."""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from zse.backends.types import LOGITS_ROWS
from zse.errors import NotFoundError, UsageError, needing
from zse.models.runner import load_runner
from zse.option import with_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from zse.models.runner import ModelRunner
    from zse.options import LoadOptions
    from zse.settings import Settings

PREFILL_TOKENS = LOGITS_ROWS
"""Tokens of a step when a window is read as a prompt is."""


class Reader(Protocol):
    """A model that reads."""

    @property
    def vocab_size(self) -> int:
        """Entries of its vocabulary."""
        ...

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return [tokens, vocabulary]: row i is about token i + 1."""
        ...


class EngineReader:
    """A .zse file's model, with the kernels and the number formats that serving has.

    Args:
        runner: The loaded model.
        chunk_tokens: Tokens of a step; with 1 each is read as a decoded one is, on a device that
            rounds activations then too.
    """

    def __init__(self, runner: ModelRunner, chunk_tokens: int) -> None:
        self.vocab_size = runner.vocab_size
        self._runner = runner
        self._chunk_tokens = chunk_tokens

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        rows = self._runner.logits(token_ids, chunk_tokens=self._chunk_tokens)
        return np.stack([np.asarray(row, np.float32) for row in rows])


class CheckpointReader:
    """A checkpoint as transformers runs it, in float32: what a quantized file is held against.

    Args:
        folder: The checkpoint.
        may_use_gpu: Run it on a GPU where torch sees one.
    """

    def __init__(self, folder: Path, *, may_use_gpu: bool = False) -> None:
        with needing("hf", f"reading {folder} in floating point"):
            import torch
            from transformers import AutoModelForCausalLM
        self._torch = torch
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"transformers cannot read {folder}: {error}") from error
        found = torch.accelerator.current_accelerator(check_available=True)
        self._device = found if may_use_gpu and found is not None else torch.device("cpu")
        self._model = loaded.eval().to(self._device)
        self.vocab_size = int(loaded.config.get_text_config().vocab_size)

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        with self._torch.inference_mode():
            ids = self._torch.tensor([list(token_ids)], device=self._device)
            rows: Any = self._model(ids).logits[0]
        found: NDArray[np.float32] = rows.float().cpu().numpy()
        return found


class Remembering:
    """A reader whose answers are kept, for several models that are held against it."""

    def __init__(self, reader: Reader) -> None:
        self.vocab_size = reader.vocab_size
        self._reader = reader
        self._found: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        key = tuple(token_ids)
        if key not in self._found:
            self._found[key] = self._reader.logits(token_ids)
        return self._found[key]


@contextmanager
def open_engine(
    path: Path, options: LoadOptions, settings: Settings, *, context: int, chunk_tokens: int
) -> Iterator[EngineReader]:
    """Load a .zse file for windows of ``context`` tokens, and close it in the end.

    Raises:
        UsageError: The model takes no window that long.
        DeviceError: The device is absent or too small.
    """
    values = {"max_sequences": 1, "num_blocks": -(-context // options.cache.block_size) + 1}
    runner = load_runner(path, with_values(options, values), cache_dir=settings.cache_dir)
    with closing(runner):
        if context > runner.max_position:
            raise UsageError(
                f"windows of {context} tokens are longer than the {runner.max_position} that the "
                "model takes: give a smaller --context"
            )
        yield EngineReader(runner, chunk_tokens)


def is_checkpoint(name: str) -> bool:
    """Whether a name is a folder that transformers may read.

    Raises:
        NotFoundError: It is a folder without a config.json.
    """
    folder = Path(name)
    if not folder.is_dir():
        return False
    if not (folder / "config.json").is_file():
        raise NotFoundError(f"{folder} has no config.json: it is no checkpoint")
    return True
