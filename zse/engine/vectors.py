"""Texts as vectors, and pairs of them as scores: which states these are made of, and by what."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

from zse.engine.reading import PromptQuery
from zse.engine.request import Request, SamplingParams
from zse.errors import InvalidParameterError
from zse.models.pooling import POOLING_SECTION, pooling_told

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zse.engine.encoder_core import AnyCore
    from zse.engine.loading import LoadedModel
    from zse.engine.reading import Pooling
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec


def vectors_of_texts(
    model: LoadedModel, prompts: Sequence[Sequence[int]], pooling: Pooling | None
) -> list[Sequence[float]]:
    """Return a vector of each prompt: an encoder reads them whole, others step by step.

    Raises:
        InvalidParameterError: A prompt is empty, a token id is out of range, or the model makes
            scores, not vectors.
        ContextLengthError: A prompt is longer than the context.
    """
    spec = model.core.runner.spec
    if spec.task == "scores":
        raise InvalidParameterError(
            "this model is a reranker, which makes no vectors; zse.LLM.rerank has its scores",
            param="model",
        )
    return read_vectors(model.core, prompts, pooling or pooling_of([model.reader], spec))


def read_vectors(
    core: AnyCore,
    prompts: Sequence[Sequence[int]],
    pooling: Pooling,
    second_from: Sequence[int | None] = (),
) -> list[Sequence[float]]:
    """Return what becomes of each prompt: a vector of the model's own length, or its scores.

    Drives the engine. What else runs in it must have ended: its events would be lost.

    Args:
        core: The engine.
        prompts: Token ids of texts, or of pairs of texts.
        pooling: Which states make the vectors.
        second_from: Where the second text of each begins; empty where they are no pairs.

    Raises:
        InvalidParameterError: A text is empty, or a token id is out of range.
        ContextLengthError: A text is longer than the context.
    """
    if not all(prompts):
        raise InvalidParameterError("a text without tokens has no vector", param="texts")
    found: dict[str, Sequence[float]] = {}
    query = PromptQuery(pooling=pooling, generates=False)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    names = [f"vector-{index}" for index in range(len(prompts))]
    seconds = second_from or [None] * len(prompts)
    try:
        for name, prompt, second in zip(names, prompts, seconds, strict=True):
            core.add_request(
                Request(
                    request_id=name,
                    prompt_token_ids=list(prompt),
                    params=params,
                    query=query,
                    second_from=second,
                )
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


def pooling_of(files: Iterable[ModelFile], spec: ModelSpec) -> Pooling:
    """Return how states become a vector: as a file tells, else as is usual for the model.

    Raises:
        UnsupportedModelError: The file tells what nothing here computes.
    """
    usual = spec.head.pooling
    if spec.head.classifier is None:
        sections = (
            file.section(POOLING_SECTION) for file in files if file.has_section(POOLING_SECTION)
        )
        told = next((pooling_told(bytes(data)) for data in sections), None)
        usual = told or usual
    return "last" if usual == "none" else usual


def unit(vector: Sequence[float], dimensions: int | None = None) -> array[float]:
    """Return the first so many numbers of a vector, brought to length 1, as float32."""
    kept = vector[:dimensions]
    length = math.sqrt(math.fsum([value * value for value in kept]))
    return array("f", [value / length for value in kept] if length > 0 else kept)
