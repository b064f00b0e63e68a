"""The built-in model answers the committed questions at every quantization."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "quality.py"


@pytest.fixture(scope="module")
def quality():
    spec = importlib.util.spec_from_file_location("bench_quality", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("quality")


@pytest.mark.parametrize(
    ("quant", "least"), [("fp16", 0.95), ("int8", 0.96), ("nf4", 0.93), ("int4", 0.93)]
)
def test_tiny_answers_nearly_all_questions(quality, cache_dir, quant, least):
    rows = quality.load_questions()
    result = quality.grade("tiny", quant, rows, cache_dir)
    assert result["accuracy"] >= least, result["wrong"]


def test_the_questions_are_three_hundred_different_ones_of_seven_kinds(quality):
    rows = quality.load_questions()
    assert len({row["id"] for row in rows}) == 300
    assert len({row["messages"][0]["content"] for row in rows}) == 300
    assert len({row["category"] for row in rows}) == 7


def test_tiny_answers_well_at_the_end_of_a_long_conversation(quality, cache_dir):
    from zse.engine.llm import LLM
    from zse.engine.request import SamplingParams
    from zse.quantize.locate import locate_model
    from zse.settings import Settings

    rows = [row for row in quality.load_questions() if row["category"] == "opposites"][:20]
    messages = []
    for row in rows:
        answer = {"role": "assistant", "content": row["answer"]}
        messages += [*row["messages"], answer]
    question = {"role": "user", "content": "What is the capital of France?"}
    with LLM(
        locate_model("tiny", Settings(cache_dir=cache_dir), quant="int8"), device="cpu"
    ) as llm:
        greedy = SamplingParams(max_tokens=32, temperature=0.0)
        output = llm.chat([*messages, question], greedy)
    assert output.outputs[0].text == "The capital of France is Paris."
