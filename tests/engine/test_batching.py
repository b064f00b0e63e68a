"""BatchingEngine: texts in, texts out, for many callers of one loop."""

import asyncio
from types import SimpleNamespace

import pytest

from zse.engine import batching
from zse.engine.batching import BatchConfig, BatchingEngine, BatchRequest
from zse.engine.llm import LLM
from zse.engine.request import Request, SamplingParams
from zse.errors import UsageError

PROMPTS = ["The capital of France is", "Hello", "Two and two are"]


def test_the_configuration_has_its_defaults_and_becomes_options():
    config = BatchConfig(
        max_batch_size=32,
        max_tokens_per_batch=4096,
        batch_wait_timeout_ms=50,
        enable_cuda_graphs=False,
    )
    assert config == BatchConfig()
    options = config.to_options(device="cpu")
    assert (options.batch.max_sequences, options.batch.max_batch_tokens) == (32, 4096)
    assert options.device.name == "cpu"
    with pytest.raises(UsageError):
        BatchConfig(max_batch_size=0).to_options()


def test_a_request_is_the_engines_own():
    assert BatchRequest is Request


def test_an_engine_that_was_not_started_says_so():
    with pytest.raises(UsageError, match="not started"):
        asyncio.run(BatchingEngine("tiny").generate("x"))


def test_tasks_that_start_an_engine_together_load_its_model_once(monkeypatch):
    done = []

    def load(*_):
        done.append("loaded")
        reader = SimpleNamespace(close=lambda: done.append("file closed"))
        return SimpleNamespace(core=None, tokenizer=None, reader=reader)

    closing = SimpleNamespace(close=lambda: done.append("engine closed"))
    monkeypatch.setattr(batching, "load_model", load)
    monkeypatch.setattr(batching, "AsyncEngine", lambda *_: closing)

    async def together():
        engine = BatchingEngine("tiny")
        await asyncio.gather(engine.start(), engine.start(), engine.stop(), engine.stop())

    asyncio.run(together())
    assert done == ["loaded", "engine closed", "file closed"]


@pytest.mark.slow
def test_concurrent_callers_get_what_each_gets_alone():
    greedy = {"temperature": 0.0, "max_new_tokens": 8}

    async def ask_together():
        config = BatchConfig(max_batch_size=4, max_tokens_per_batch=256)
        async with BatchingEngine("tiny", config, device="cpu", max_context=256) as engine:
            texts = await asyncio.gather(*(engine.generate(one, **greedy) for one in PROMPTS))
            pieces = [piece async for piece in engine.generate_stream(PROMPTS[0], **greedy)]
        return texts, pieces

    texts, pieces = asyncio.run(ask_together())
    with LLM("tiny", device="cpu", max_context=256) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=8)
        assert texts == [one.text for one in llm.generate(PROMPTS, params)]
    assert "".join(pieces) == texts[0]
    assert len(pieces) > 1
