"""What transformers says of the built-in model's checkpoint: the reference of scores and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from zse.models.builtin import BUILTIN_MODELS

if TYPE_CHECKING:
    from collections.abc import Sequence


class Reference:
    """The checkpoint in float32, asked one text at a time."""

    def __init__(self) -> None:
        folder = BUILTIN_MODELS["tiny"]
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def log_probabilities(self, question: str, choices: Sequence[str]) -> list[float]:
        """Return the log-probability of each choice behind a question."""
        num_before = len(self._tokenizer(question).input_ids)
        return [self._log_probability(question + choice, num_before) for choice in choices]

    @torch.inference_mode()
    def _log_probability(self, text: str, num_before: int) -> float:
        ids = torch.tensor([self._tokenizer(text).input_ids])
        logits = self._model(ids).logits[0, num_before - 1 : -1]
        chosen = ids[0, num_before:, None]
        return float(logits.log_softmax(-1).gather(1, chosen).sum())

    @torch.inference_mode()
    def answer(self, question: str, max_tokens: int) -> str:
        """Return the greedy answer of a chat, up to the end of its first line."""
        messages = [{"role": "user", "content": question}]
        ids = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        made = self._model.generate(ids, max_new_tokens=max_tokens, do_sample=False)
        text = self._tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
        return text.partition("\n")[0]
