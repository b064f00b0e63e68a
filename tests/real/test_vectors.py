"""Vectors of a trained embedder at every scheme, beside ``transformers`` in float32."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from real_model import RealModel, find_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

# Of the worst text, which is one letter: what is measured is 1, 0.99998, 0.9972, 0.946 and 0.934.
LEAST = {"fp16": 0.99999, "bf16": 0.9999, "int8": 0.995, "nf4": 0.92, "int4": 0.9}
TEXTS = [
    "A cat sits on the windowsill and watches the birds in the garden.",
    "The kitten looks at birds through the window.",
    "Interest rates rose for the third time this year.",
    "The central bank raised its key rate again.",
    "How do I reverse a linked list in Python?",
    "def reverse(head):\n    previous = None\n    while head:\n        head.next, previous, head = "
    "previous, head, head.next\n    return previous",
    "naïve café, 東京, ½ of π ≈ 1.57",
    "a",
    "The harbor wakes before the town does. " * 40,
]
ALIKE = {0: 1, 2: 3, 4: 5}
"""Texts whose nearest among the others is known."""


@pytest.fixture(scope="module")
def model() -> Iterator[RealModel]:
    checkpoint = find_checkpoint("minilm-l6")
    with tempfile.TemporaryDirectory(prefix="zse-real-") as folder:
        yield RealModel("minilm-l6", checkpoint, Path(folder))


@pytest.fixture(scope="module")
def expected(model: RealModel) -> torch.Tensor:
    """Return what sentence-transformers makes: means of states, of length 1."""
    import torch
    from transformers import AutoModel

    reference = AutoModel.from_pretrained(model.checkpoint, dtype=torch.float32).eval()
    found = []
    for text in TEXTS:
        inputs = model.tokenizer(text, return_tensors="pt", truncation=False)
        with torch.no_grad():
            found.append(reference(**inputs).last_hidden_state[0].mean(0))
    return torch.nn.functional.normalize(torch.stack(found), dim=1)


@pytest.mark.parametrize("quant", list(LEAST))
def test_vectors_are_near_those_of_transformers(
    model: RealModel, expected: torch.Tensor, quant: str
) -> None:
    import torch

    from zse.engine.llm import LLM

    with LLM(model.file(quant), device="cpu") as llm:
        found = torch.tensor([list(vector) for vector in llm.embed(TEXTS)])
        cosines = (found * expected).sum(1)
        print(f"minilm-l6 {quant}: least cosine {float(cosines.min()):.6f}")
        assert float(cosines.min()) > LEAST[quant]
        for query, nearest in ALIKE.items():
            others = [index for index in range(len(TEXTS)) if index != query]
            ranked = llm.rerank(TEXTS[query], [TEXTS[index] for index in others])
            assert others[ranked[0].index] == nearest
