"""The engine on real runners: what is in a batch never changes a greedy answer.

The same tests run on the CPU and, where there is one, on a GPU.
"""

from __future__ import annotations

import itertools
import random
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from zse.engine.core import EngineCore
from zse.engine.reading import PromptQuery
from zse.engine.request import Request, SamplingParams
from zse.format import ZSEReader
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings
from zse.text.grammar import spec as forms
from zse.text.grammar.compile import GrammarCompiler
from zse.text.tokenizer import load_tokenizer

PROMPTS = [
    [random.Random(seed).randrange(256) for _ in range(length)]
    for seed, length in enumerate([3, 40, 1, 17, 33, 8, 40, 64])
]
PROMPTS[6] = [*PROMPTS[1][:35], 1, 2, 3, 4, 5]  # shares a prefix


BLOCK_SIZES = {"cpu": 8, "cuda": 32}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture(scope="module")
def model(tmp_path_factory, random_checkpoint):
    """A random model whose heads are as wide as a GPU's kernels want them, in INT8."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from zse.format import convert_model

    folder = tmp_path_factory.mktemp("wide-heads")
    shutil.copytree(random_checkpoint, folder, dirs_exist_ok=True)
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(random_checkpoint)
    config.update({"hidden_size": 128, "intermediate_size": 256, "head_dim": 64})
    config.update({"num_attention_heads": 2, "num_key_value_heads": 1})
    LlamaForCausalLM(config).save_pretrained(folder)
    path = tmp_path_factory.mktemp("converted") / "model.zse"
    convert_model(folder, path, quantization="int8")
    return path


@pytest.fixture(scope="module")
def open_core(model, device):
    """Return a function that makes a core on the device."""

    def make(*, num_tokens=512, **options):
        block_size = BLOCK_SIZES[device]
        runner = load_runner(
            model,
            load_options(
                device=device,
                num_blocks=num_tokens // block_size,
                block_size=block_size,
                threads=1,
                # Rounding differs between a batch and a single row; without 8 bits it is far smaller
                # than the margins of this model.
                exact_activations=True,
                kernels=load_settings().serve.load.device.kernels,
            ),
            cache_dir=load_settings().cache_dir,
        )
        return EngineCore(runner, load_options(**options))

    return make


@pytest.fixture(scope="module")
def answers_alone(open_core):
    """Each prompt answered by itself, whole prompt in one step, nothing reused."""
    core = open_core(prefix_cache=False)
    answers = []
    for prompt in PROMPTS:
        core.add_request(greedy("a", prompt))
        answers.append(answer_all(core)["a"])
    core.close()
    return answers


def greedy(request_id, prompt, **params):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, **params)
    return Request(request_id=request_id, prompt_token_ids=prompt, params=params)


def answer_all(core):
    answers = {}
    while core.has_work:
        for event in core.step():
            answers.setdefault(event.request_id, []).append(event.token_id)
        core.check_consistency()
    return answers


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_tokens": 512},
        {"max_batch_tokens": 13},
        {"max_sequences": 3},
        {"prefix_cache": False, "max_batch_tokens": 50},
        {"num_tokens": 224},
    ],
    ids=["one batch", "small chunks", "few slots", "no reuse", "preemption"],
)
def test_a_greedy_answer_does_not_depend_on_the_batch(open_core, answers_alone, device, options):
    core = open_core(**options)
    for _ in range(2):  # the second time from cached prefixes
        for index, prompt in enumerate(PROMPTS):
            core.add_request(greedy(f"r{index}", prompt))
        answers = answer_all(core)
        assert [answers[f"r{index}"] for index in range(len(PROMPTS))] == answers_alone
    if device == "cpu":  # larger blocks are all taken when a request is admitted: others wait
        assert bool(core.stats().preemptions) == ("num_tokens" in options)
    core.close()


def test_requests_that_come_and_go_do_not_change_the_others(open_core, answers_alone):
    core = open_core(max_batch_tokens=20)
    answers = {}
    for step in range(200):
        if step % 3 == 0 and step // 3 < len(PROMPTS):
            core.add_request(greedy(f"r{step // 3}", PROMPTS[step // 3]))
            core.add_request(greedy(f"x{step}", [step, 1, 2]))
        if step % 3 == 2:
            core.abort(f"x{step - 2}")
        for event in core.step():
            answers.setdefault(event.request_id, []).append(event.token_id)
    assert not core.has_work
    assert [answers[f"r{index}"] for index in range(len(PROMPTS))] == answers_alone
    core.close()


def test_a_seeded_answer_does_not_depend_on_the_batch(open_core):
    def sample(core, names):
        for name in names:
            params = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
            core.add_request(
                Request(request_id=name, prompt_token_ids=[*name.encode()], params=params)
            )
        return answer_all(core)

    core = open_core()
    assert sample(core, ["hello"])["hello"] == sample(core, ["a", "hello", "b"])["hello"]
    core.close()


def test_logits_agree_with_the_tokens_that_the_engine_chooses(open_core, answers_alone):
    core = open_core()
    prompt, answer = PROMPTS[3], answers_alone[3]
    logits = torch.as_tensor(np.asarray(core.logits([*prompt, *answer])))
    assert tuple(logits.shape) == (len(prompt) + len(answer), core.runner.vocab_size)
    chosen = logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
    assert chosen == answer
    core.close()


@pytest.mark.parametrize(
    "options", [{}, {"max_batch_tokens": 7}], ids=["one batch", "small chunks"]
)
def test_log_probabilities_of_a_prompt_are_those_of_its_logits(open_core, answers_alone, options):
    core = open_core(**options)
    query = PromptQuery(logprobs=2)
    for index, prompt in enumerate(PROMPTS):
        request = greedy(f"r{index}", prompt)
        core.add_request(replace(request, query=query if index % 2 else None))
    reports, answers = {}, {}
    while core.has_work:
        for event in core.step():
            answers.setdefault(event.request_id, []).append(event.token_id)
            if event.report is not None:
                reports[event.request_id] = event.report
    assert [answers[f"r{index}"] for index in range(len(PROMPTS))] == answers_alone
    assert sorted(reports) == [f"r{index}" for index in range(1, len(PROMPTS), 2)]
    for index in range(1, len(PROMPTS), 2):
        prompt = PROMPTS[index]
        expected = torch.log_softmax(torch.as_tensor(np.asarray(core.logits(prompt))), -1)
        tokens = reports[f"r{index}"].tokens
        assert [token.token_id for token in tokens] == prompt[1:]
        for place, token in enumerate(tokens):
            row = expected[place]
            assert token.logprob == pytest.approx(float(row[token.token_id]), abs=0.05)
            assert token.top[0][1] == pytest.approx(float(row.max()), abs=0.05)
    core.close()


def test_a_prompt_becomes_a_vector_and_nothing_is_generated(open_core):
    core = open_core()
    prompts = [[7], list(range(40)), [*range(35), 1, 2, 3, 4, 5]]
    for index, prompt in enumerate(prompts):
        for pooling in ("last", "mean"):
            query = PromptQuery(pooling=pooling, generates=False)
            request = greedy(f"{pooling}{index}", prompt)
            core.add_request(replace(request, query=query))
    vectors = {}
    while core.has_work:
        for event in core.step():
            assert (event.token_id, event.finish_reason) == (None, "length")
            vectors[event.request_id] = torch.tensor(list(event.report.vector))
    assert core.stats().generated_tokens == 0
    for index, prompt in enumerate(prompts):
        last, mean = vectors[f"last{index}"], vectors[f"mean{index}"]
        assert last.shape == mean.shape == (core.runner.spec.hidden_size,)
        # A prompt of one token has one state; the last state of a longer one is another.
        assert torch.allclose(last, mean, atol=1e-3) == (len(prompt) == 1)
    assert not torch.allclose(vectors["mean1"], vectors["mean2"], atol=1e-3)
    core.close()


FORMS = ["[a-z]{3} [0-9]{2,9}", "(yes|no), because [a-z ]{4,12}", "a+b"]


def test_an_answer_in_a_form_does_not_depend_on_the_batch(open_core, model):
    with ZSEReader(model) as reader:
        tokenizer = load_tokenizer(reader)
    core = open_core()
    compiler = GrammarCompiler(
        tokenizer, vocab_size=core.runner.vocab_size, end_token_ids=tokenizer.eos_ids
    )
    requests = [
        replace(greedy(f"r{number}", prompt), grammar=compiler.compile(forms.regex(form)))
        for number, (prompt, form) in enumerate(itertools.product(PROMPTS[:4], FORMS))
    ]
    alone = {}
    for request in requests:
        core.add_request(request)
        alone |= answer_all(core)
    for request in requests:
        core.add_request(request)
    core.add_request(greedy("free", PROMPTS[5]))
    together = answer_all(core)
    assert len(together.pop("free")) == 24
    assert together == alone
    core.close()
    for request, form in zip(requests, FORMS * 4, strict=True):
        text = tokenizer.decode(together[request.request_id])
        assert re.fullmatch(form, text) or len(together[request.request_id]) == 24
