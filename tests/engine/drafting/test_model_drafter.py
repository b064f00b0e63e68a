"""A second model that drafts: what it writes, how it goes back, and that answers stay the same."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from zse.engine.drafting import opening
from zse.engine.loading import load_model
from zse.engine.request import Request, SamplingParams
from zse.errors import UnsupportedModelError, UsageError
from zse.format import ZSEReader, convert_model
from zse.models.runner import ModelRunner
from zse.options import StreamOptions, load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from zse.engine.core import EngineCore

SIZES: dict[str, Any] = {"num_blocks": 64, "block_size": 8, "threads": 1}
PROMPTS = [[*range(60, 75)] * 2, [70, 71], [*b"if (x) { return y; }"]]


@pytest.fixture(scope="module")
def other_checkpoint(random_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model of the same tokenizer that believes something else."""
    folder = tmp_path_factory.mktemp("other")
    _write_changed(random_checkpoint, folder, num_hidden_layers=1)
    return folder


def _write_changed(checkpoint: Path, folder: Path, **changes: int) -> None:
    """Write a random model with the tokenizer of a checkpoint and some other numbers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    torch.manual_seed(1)
    config = LlamaConfig.from_pretrained(checkpoint)
    config.update(changes)
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def other_zse(other_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("other-zse") / "other.zse"
    convert_model(other_checkpoint, path, quantization="int8")
    return path


def answers_of(path: Path, device: str, **own: Any) -> tuple[dict[Any, list[int]], EngineCore]:
    """Answer all prompts, in two choices each, greedily and drawn; the core is closed then."""
    options = load_options(device=device, **{**SIZES, "speculate": "off", **own})
    model = load_model(path, options, load_settings())
    for number, prompt in enumerate(PROMPTS):
        for name, way in (("greedy", {"temperature": 0.0}), ("drawn", {"temperature": 0.7})):
            params = SamplingParams(max_tokens=30, ignore_eos=True, seed=3, n=2, **way)
            model.core.add_request(
                Request(request_id=f"{name}{number}", prompt_token_ids=prompt, params=params)
            )
    found: dict[Any, list[int]] = {}
    while model.core.has_work:
        for event in model.core.step():
            assert event.token_id is not None
            found.setdefault((event.request_id, event.index), []).append(event.token_id)
    model.close()
    return found, model.core


@pytest.fixture(autouse=True)
def every_draft_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of models as small as these cost what the machine's other work says."""
    from zse.engine.drafting import costs

    monkeypatch.setattr(costs, "_LEAST_SECONDS", 1e3)


@pytest.mark.parametrize("device", ["torch", "cpu"])
def test_a_model_that_drafts_for_itself_is_nearly_always_right(
    random_zse: Path, device: str
) -> None:
    want, alone = answers_of(random_zse, device)
    found, core = answers_of(random_zse, device, speculate="model", draft_model=str(random_zse))
    assert found == want
    counts = core.stats().speculation
    assert counts.accepted_tokens > 0.9 * counts.draft_tokens > 0  # drawn with the same numbers
    assert core.stats().steps < 0.6 * alone.stats().steps


@pytest.mark.parametrize("sizes", [{}, {"num_blocks": 24, "max_batch_tokens": 12}])
def test_a_model_that_is_mostly_wrong_changes_no_answer(
    random_zse: Path, other_zse: Path, sizes: dict[str, int]
) -> None:
    want, _ = answers_of(random_zse, "cpu", **sizes)
    found, core = answers_of(
        random_zse, "cpu", speculate="model", draft_model=str(other_zse), **sizes
    )
    assert found == want
    counts = core.stats().speculation
    assert counts.accepted_tokens < 0.5 * counts.draft_tokens


def test_a_named_draft_model_is_what_auto_takes(random_zse: Path) -> None:
    _, core = answers_of(random_zse, "cpu", speculate="auto", draft_model=str(random_zse))
    assert core.stats().speculation.accepted_tokens > 0


def test_a_draft_model_must_be_named(random_zse: Path) -> None:
    with pytest.raises(UsageError, match="none was named"):
        answers_of(random_zse, "cpu", speculate="model")


def test_a_model_whose_draft_model_is_refused_gives_its_memory_back(
    random_zse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    close = ModelRunner.close
    monkeypatch.setattr(ModelRunner, "close", lambda runner: (closed.append(runner), close(runner)))
    with pytest.raises(UsageError, match="none was named"):
        answers_of(random_zse, "cpu", speculate="model")
    assert len(closed) == 1


def test_a_draft_model_of_other_tokens_is_refused(
    random_zse: Path, other_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "swapped"
    shutil.copytree(other_checkpoint, folder)
    definition = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    convert_model(folder, tmp_path / "swapped.zse", quantization="int8")
    with pytest.raises(UnsupportedModelError, match=r"2 of its tokens .* such as 'a'"):
        answers_of(random_zse, "cpu", speculate="model", draft_model=str(tmp_path / "swapped.zse"))


def test_the_same_vocabulary_in_another_file_is_the_same(
    random_zse: Path, other_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "spaced"
    shutil.copytree(other_checkpoint, folder)
    definition = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(definition, indent=3))
    convert_model(folder, tmp_path / "spaced.zse", quantization="int8")
    _, core = answers_of(
        random_zse, "cpu", speculate="model", draft_model=str(tmp_path / "spaced.zse")
    )
    assert core.stats().speculation.draft_tokens > 0


def test_beside_a_model_that_streams_a_draft_model_has_a_small_pool_and_streams_not(
    random_zse: Path,
) -> None:
    streamed = SimpleNamespace(looks_ahead=False, num_blocks=100_000)
    options = load_options(
        device="cuda", kernels="own.zkp", stream="on", resident_layers=3, ram_gib=4.0
    )
    with ZSEReader(random_zse) as file:
        own = opening._options_beside(streamed, options, file)
    assert (own.device.kernels, own.cache.num_blocks) == ("own.zkp", 0)
    assert 0 < own.cache.kv_gib < 1
    assert own.stream == StreamOptions()


@pytest.mark.gpu
def test_a_draft_model_runs_beside_its_model_on_a_gpu(
    random_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "wide-heads"
    heads = {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    _write_changed(random_checkpoint, folder, hidden_size=128, intermediate_size=256, **heads)
    path = tmp_path / "wide.zse"
    convert_model(folder, path, quantization="int8")
    own = {
        "block_size": 32,
        "deterministic": True,
        "kernels": load_settings().serve.load.device.kernels,
    }
    without, _ = answers_of(path, "cuda", **own)
    drafted, core = answers_of(path, "cuda", speculate="model", draft_model=str(path), **own)
    counts = core.stats().speculation
    assert drafted == without
    assert counts.accepted_tokens > counts.draft_tokens / 2 > 0
