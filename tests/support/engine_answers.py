"""Greedy answers of an engine over a real model, and those of transformers beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers
from family_shapes import SHAPE

from zse.engine.request import Request, SamplingParams
from zse.format import ZSEReader
from zse.text.grammar import spec as forms
from zse.text.grammar.compile import GrammarCompiler
from zse.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from zse.engine.core import EngineCore

    Told: TypeAlias = dict[tuple[str, int], list[Any]]

EXACT_DEVICES: list[dict[str, Any]] = [
    {"device": "torch"},
    {"device": "cpu", "exact_activations": True, "kv_dtype": "fp32"},
]


def random_tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SHAPE["vocab_size"], (count,), generator=generator).tolist()


def expected_tokens(pair: Any, prompt: list[int], new_tokens: int) -> list[int]:
    generated = pair.reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        generation_config=transformers.GenerationConfig(
            do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
        ),
    )
    return getattr(generated, "sequences", generated)[0, len(prompt) :].tolist()


def answers_of(
    core: EngineCore, prompts: list[list[int]], name: str, new_tokens: int, *, n: int = 1
) -> list[list[int]]:
    """Return every choice's tokens, the owners of blocks checked after each step."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, n=n)
    for index, prompt in enumerate(prompts):
        core.add_request(
            Request(request_id=f"{name}{index}", prompt_token_ids=prompt, params=params)
        )
    found: dict[tuple[str, int], list[int]] = {
        (f"{name}{index}", choice): [] for index in range(len(prompts)) for choice in range(n)
    }
    while core.has_work:
        for event in core.step():
            if event.token_id is not None:
                found[event.request_id, event.index].append(event.token_id)
        core.check_consistency()
    return list(found.values())


def told_answers(core: EngineCore, requests: list[Request]) -> Told:
    """Return of each choice its tokens, their log-probabilities and how it ended."""
    for request in requests:
        core.add_request(request)
    found: Told = {}
    while core.has_work:
        for event in core.step():
            told = (event.token_id, event.logprob, tuple(event.top), event.finish_reason)
            found.setdefault((event.request_id, event.index), []).append(told)
        core.check_consistency()
    return found


def requests_with_one_beginning(**params: Any) -> list[Request]:
    """Return three requests whose prompts begin with the same 20 tokens."""
    shared = [5, 6, 7, 8] * 5
    return [
        Request(
            request_id=str(index),
            prompt_token_ids=[*shared, *range(9, 9 + index)],
            params=SamplingParams(**params),
        )
        for index in range(3)
    ]


def form_compiler(path: Path) -> GrammarCompiler:
    """Return the compiler of grammars for a file of 258 tokens."""
    with ZSEReader(path) as reader:
        tokenizer = load_tokenizer(reader)
    return GrammarCompiler(tokenizer, vocab_size=258, end_token_ids=tokenizer.eos_ids)


def request_in_a_form(compiler: GrammarCompiler, num_tokens: int) -> Request:
    """Return a request whose answer repeats words and numbers."""
    return Request(
        request_id="a",
        prompt_token_ids=list(b"abc12,abc12,abc12,"),
        params=SamplingParams(temperature=0.0, max_tokens=num_tokens),
        grammar=compiler.compile(forms.regex("([a-f]+[0-9]{2},){2,9}")),
    )
