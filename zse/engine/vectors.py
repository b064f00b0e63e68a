"""Texts as vectors: which states of a model they are made of, and how many are read at once."""

from __future__ import annotations

import json
import math
from array import array
from typing import TYPE_CHECKING, Any

from zse.engine.reading import PromptQuery
from zse.engine.request import Request, SamplingParams
from zse.errors import InvalidParameterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zse.engine.core import EngineCore
    from zse.engine.loading import LoadedModel
    from zse.engine.reading import Pooling
    from zse.format.model_file import ModelFile
    from zse.models.spec import Pooling as SpecPooling

_MODES: Mapping[str, SpecPooling] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
POOLING_SECTION = "1_Pooling/config.json"
"""What sentence-transformers calls the file that says how states become a vector."""


def vectors_of_texts(
    model: LoadedModel, prompts: Sequence[Sequence[int]], pooling: Pooling | None
) -> list[Sequence[float]]:
    """Return a vector of each prompt: an encoder reads them whole, others step by step.

    Raises:
        InvalidParameterError: A prompt is empty, or a token id is out of range.
        ContextLengthError: A prompt is longer than the context.
    """
    files, core = [model.reader], model.core
    if core.runner.is_encoder:
        usual = core.runner.spec.head.pooling
        return core.vectors(prompts, pooling or pooling_of_encoder(files, usual))
    return read_vectors(core, prompts, pooling or pooling_of_files(files))


def read_vectors(
    core: EngineCore, prompts: Sequence[Sequence[int]], pooling: Pooling
) -> list[Sequence[float]]:
    """Return a vector of each prompt, of the model's own length; drives the engine.

    What else runs in the engine must have ended: its events would be lost.

    Raises:
        InvalidParameterError: A prompt is empty.
        ContextLengthError: A prompt is longer than the context.
    """
    if not all(prompts):
        raise InvalidParameterError("a text without tokens has no vector", param="texts")
    found: dict[str, Sequence[float]] = {}
    query = PromptQuery(pooling=pooling, generates=False)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    names = [f"vector-{index}" for index in range(len(prompts))]
    try:
        for name, prompt in zip(names, prompts, strict=True):
            core.add_request(
                Request(request_id=name, prompt_token_ids=list(prompt), params=params, query=query)
            )
        while core.has_work and len(found) < len(names):
            for event in core.step():
                if event.report is not None and event.report.vector is not None:
                    found[event.request_id] = event.report.vector
    finally:
        for name in names:
            if name not in found:
                core.abort(name)
    return [found[name] for name in names]


def pooling_of_encoder(files: Iterable[ModelFile], usual: SpecPooling) -> SpecPooling:
    """Return how an encoder's states become a vector as a file tells, else as is usual for it."""
    for file in files:
        if file.has_section(POOLING_SECTION):
            told = _told_in(bytes(file.section(POOLING_SECTION)))
            return next((how for name, how in _MODES.items() if told.get(name) is True), usual)
    return usual


def unit(vector: Sequence[float], dimensions: int | None = None) -> array[float]:
    """Return the first so many numbers of a vector, brought to length 1, as float32."""
    kept = vector[:dimensions]
    length = math.sqrt(math.fsum([value * value for value in kept]))
    return array("f", [value / length for value in kept] if length > 0 else kept)


def pooling_of_files(files: Iterable[ModelFile]) -> Pooling:
    """Return how states become a vector as the first file that tells says, else last."""
    for file in files:
        if file.has_section(POOLING_SECTION):
            told = _told_in(bytes(file.section(POOLING_SECTION)))
            return "mean" if told.get("pooling_mode_mean_tokens") is True else "last"
    return "last"


def _told_in(data: bytes) -> Mapping[str, Any]:
    """Return what a file says of pooling; nothing where it cannot be read."""
    try:
        config: Any = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
