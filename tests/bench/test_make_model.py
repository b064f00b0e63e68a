"""Files of random weights: valid, reproducible, and sane enough to run."""

from __future__ import annotations

import json
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.errors import FormatError
from zse.format.reader import ZSEReader
from zse.models.families import read_checkpoint
from zse.text.template import load_chat_template
from zse.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts" / "bench"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import make_model

    return make_model


def make(tool: ModuleType, path: Path, quant: str, **options: Any) -> Path:
    assert tool.make_model(path, like="tiny-gqa", quant=quant, **options) == path.stat().st_size
    return path


@pytest.mark.parametrize("quant", ["int4", "nf4", "mxfp4", "int8", "bf16"])
def test_every_scheme_makes_a_file_that_verifies(
    tool: ModuleType, tmp_path: Path, quant: str
) -> None:
    with ZSEReader(make(tool, tmp_path / "a.zse", quant)) as reader:
        reader.verify()
        schemes = {name: str(reader.entry(name).scheme) for name in reader.names()}
        assert schemes["layers.1.gate_up.weight"] == quant
        assert schemes["layers.1.attn_norm.weight"] == schemes["layers.1.qkv.bias"] == "fp32"
        matrix = "bf16" if quant == "bf16" else "int8"
        assert schemes["embed.weight"] == schemes["lm_head.weight"] == matrix
        for name in ("layers.0.qkv.weight", "layers.2.down.weight", "lm_head.weight"):
            weight = reader.tensor(name)
            assert weight.std().item() == pytest.approx(0.02, rel=0.05)
            assert abs(weight.mean().item()) < 0.002
            assert (weight[0] != weight[1]).any()
        assert (reader.tensor("final_norm.weight") == 1).all()
        assert reader.tensor("layers.0.qkv.bias").abs().max().item() < 0.2
        assert (reader.tensor("layers.0.o.weight") != reader.tensor("layers.1.o.weight")).any()


def test_the_tokenizer_and_the_template_work(tool: ModuleType, tmp_path: Path) -> None:
    with ZSEReader(make(tool, tmp_path / "a.zse", "int4")) as reader:
        tokenizer = load_tokenizer(reader)
        assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"
        template = load_chat_template(reader)
        assert "hi" in template.render([{"role": "user", "content": "hi"}])
        assert reader.has_section("tokenizer.kitoken")


def test_the_same_arguments_give_the_same_bytes(tool: ModuleType, tmp_path: Path) -> None:
    first = make(tool, tmp_path / "a.zse", "int4", threads=1).read_bytes()
    assert make(tool, tmp_path / "b.zse", "int4", threads=5).read_bytes() == first
    assert make(tool, tmp_path / "c.zse", "int4", seed=1).read_bytes() != first


def test_without_digests_the_file_opens_but_does_not_verify(
    tool: ModuleType, tmp_path: Path
) -> None:
    with ZSEReader(make(tool, tmp_path / "a.zse", "int4", digest=False)) as reader:
        assert {group.sha256 for group in reader.header.groups} == {"0" * 64}
        with pytest.raises(FormatError):
            reader.verify()


def test_a_model_of_random_weights_answers(tool: ModuleType, tmp_path: Path) -> None:

    path = make(tool, tmp_path / "a.zse", "int8")
    with LLM(path, device="cpu", num_blocks=8) as llm:
        (answer,) = llm.generate(["hello"], SamplingParams(max_tokens=4, ignore_eos=True))
    assert len(answer.outputs[0].token_ids) == 4


def test_a_model_with_states_answers(tool: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.zse"
    tool.make_model(path, like="tiny-hybrid", quant="int4")
    with LLM(path, device="torch", num_blocks=8) as llm:
        (answer,) = llm.generate(["hello"], SamplingParams(max_tokens=4, ignore_eos=True))
    assert len(answer.outputs[0].token_ids) == 4


def test_experts_of_gpt_oss_are_mxfp4_whatever_is_asked_for(
    tool: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "a.zse"
    tool.make_model(path, like="tiny-gpt-oss", quant="int4")
    with ZSEReader(path) as reader:
        reader.verify()
        schemes = {name: str(reader.entry(name).scheme) for name in reader.names()}
        assert schemes["layers.1.o.weight"] == "int4"
        for name in ("layers.0.experts.gate_up.weight", "layers.1.experts.down.weight"):
            assert schemes[name] == "mxfp4"
            assert reader.tensor(name).std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("like", "billions"),
    [
        ("qwen2.5-7b", 7.616),
        ("qwen2.5-14b", 14.770),
        ("qwen2.5-32b", 32.764),
        ("qwen2.5-72b", 72.706),
        ("llama3-8b", 8.030),
        ("qwen3.6-35b-a3b", 34.661),
        ("gpt-oss-20b", 20.915),
        ("gpt-oss-120b", 116.829),
    ],
)
def test_the_shapes_have_the_parameters_of_the_models(
    tool: ModuleType, like: str, billions: float
) -> None:
    count = sum(prod(weight.shape) for weight in read_checkpoint(tool.CONFIGS[like]).weights())
    assert count / 1e9 == pytest.approx(billions, abs=0.001)


def test_a_file_that_cannot_be_written_leaves_nothing(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tool, "write_groups", full)
    with pytest.raises(OSError, match="No space"):
        make(tool, tmp_path / "a.zse", "int4")
    assert list(tmp_path.iterdir()) == []


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCH / script), *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


def test_the_loader_benchmark_measures_every_case(tmp_path: Path) -> None:
    made = run("make_model.py", "--like", "tiny-gqa", "-o", str(tmp_path / "bench-tiny-gqa.zse"))
    assert json.loads(made)["size_bytes"] == (tmp_path / "bench-tiny-gqa.zse").stat().st_size
    options = ["--host", "--like", "tiny-gqa", "--folder", str(tmp_path), "--repeat", "1"]
    result = json.loads(run("loader.py", *options).splitlines()[-1])
    assert {row["case"] for row in result["runs"]} == {"cached", "s3"}
    assert all(row["gigabytes_per_second"] > 0 for row in result["runs"])
