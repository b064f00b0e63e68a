"""A calibrated conversion: the text goes through the model as it does when it is served."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
import torch
from family_shapes import shape_of

from zse.backends.torch.backend import TorchBackend
from zse.backends.types import SequenceChunk, StepBatch
from zse.errors import UnsupportedModelError, UsageError
from zse.format.reader import ZSEReader
from zse.models.decoder import run_layers
from zse.models.runner import load_runner
from zse.option import with_values
from zse.options import LoadOptions
from zse.quantize.calibrate import walk as walk_module
from zse.quantize.calibrate import weights as weights_module
from zse.quantize.calibrate.walk import Walk
from zse.quantize.calibrate.weights import CheckpointWeights
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.convert import ConversionProgress, convert_model
from zse.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and looked at nobody. " * 40)
    return path


@pytest.mark.parametrize(
    "family", ["qwen2", "qwen3_moe", "gpt2", "gemma2", "olmo2", "glm4_moe", "gpt_oss"]
)
def test_states_behind_the_last_layer_are_those_of_the_served_model(
    make_checkpoint, tmp_path: Path, family: str
) -> None:
    folder = make_checkpoint(tmp_path / "model", family, **shape_of(family))
    sequences = [[5, 9, 3, 7, 11, 60], [4, 8, 2]]
    with Checkpoint(folder) as checkpoint:
        walk, spec = Walk(checkpoint, sequences), checkpoint.spec
        for layer in spec.layers:
            given = walk.through(layer, is_counting=True, size_bytes=1, on_bytes=lambda _: None)
            whole = [ms[0].count for name, ms in given.items() if len(ms) == 1]
            assert set(whole) == {9}
            assert all(sum(m.count for m in ms) % 9 == 0 for ms in given.values())
    convert_model(folder, tmp_path / "m.zse", "bf16")
    with ZSEReader(tmp_path / "m.zse") as reader:
        backend = TorchBackend(reader, spec, LoadOptions())
        for first, ids in ((0, sequences[0]), (6, sequences[1])):
            chunk = SequenceChunk(0, ids, 0, range(1), "prefill")
            step = backend.begin(StepBatch(chunks=[chunk], sampling=[()]), backend.new_cache(1))
            expected = run_layers(backend, spec, step)
            found = walk.states[first : first + len(ids)]
            assert torch.allclose(found, expected, atol=1e-5)
        backend.close()


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "olmo2"])
def test_a_text_is_taken_through_a_layer_on_the_device_alone(
    make_checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str
) -> None:
    """Torch's "meta" stands for a GPU: with it and the CPU in one operation, torch refuses."""
    elsewhere = torch.device("meta")
    folder = make_checkpoint(tmp_path / "model", family, **shape_of(family))

    def rows_of(self: CheckpointWeights, ids: torch.Tensor) -> torch.Tensor:
        assert ids.device == elsewhere  # which hides what numbers they are
        return torch.zeros(len(ids), self._table.sources[0].shape[-1])

    monkeypatch.setattr(CheckpointWeights, "_rows_of", rows_of)
    with Checkpoint(folder) as checkpoint:
        walk = Walk(checkpoint, [[5, 9, 3, 7, 11, 60], [4, 8, 2]], elsewhere)
        for layer in checkpoint.spec.layers:
            given = walk.through(layer, is_counting=True, size_bytes=1, on_bytes=lambda _: None)
            products = [one.products() for moments in given.values() for one in moments]
            assert {one.device for each in products for one in each} == {elsewhere}
    assert walk.states.device == elsewhere


@pytest.mark.parametrize("quantization", ["int4", "nf4", "int8"])
def test_the_file_tells_by_what_it_was_calibrated_and_is_the_same_every_time(
    llama_folder: Path, tmp_path: Path, text: Path, quantization: str
) -> None:
    plain = convert_model(llama_folder, tmp_path / "plain.zse", quantization)
    reports = [
        convert_model(llama_folder, tmp_path / f"{i}.zse", quantization, calibrate=text)
        for i in range(2)
    ]
    assert reports[0].sha256 == reports[1].sha256 != plain.sha256
    assert plain.calibration == {}
    assert reports[0].calibration == {
        "text": "text.txt",
        "sha256": digest(text),
        "tokens": reports[0].calibration["tokens"],
        "method": "gptq",
    }
    with ZSEReader(tmp_path / "0.zse") as reader:
        reader.verify()
        assert reader.header.provenance["calibration"] == reports[0].calibration


def test_logits_on_the_text_are_nearer_to_the_checkpoints(
    llama_folder: Path, tmp_path: Path, text: Path
) -> None:
    rows = {}
    for name, quantization, read in (
        ("exact", "bf16", None),
        ("no", "nf4", None),
        ("yes", "nf4", text),
    ):
        convert_model(llama_folder, tmp_path / f"{name}.zse", quantization, calibrate=read)
        with ZSEReader(tmp_path / f"{name}.zse") as reader:
            ids = load_tokenizer(reader).encode(text.read_text())[:100]
        options = with_values(LoadOptions(), {"num_blocks": 16, "max_sequences": 1})
        runner = load_runner(tmp_path / f"{name}.zse", options)
        rows[name] = torch.tensor([list(row) for row in runner.logits(ids)])
        runner.close()
    far = {name: float((rows[name] - rows["exact"]).square().mean()) for name in ("no", "yes")}
    assert far["yes"] < 0.7 * far["no"]


def test_a_calibrated_conversion_that_was_stopped_goes_on_to_the_same_bytes(
    llama_folder: Path, tmp_path: Path, text: Path
) -> None:
    whole = convert_model(llama_folder, tmp_path / "whole.zse", calibrate=text)

    def stop(now: ConversionProgress) -> None:
        if now.done_bytes > 0.7 * now.total_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_model(llama_folder, tmp_path / "m.zse", calibrate=text, resume=True, progress=stop)
    report = convert_model(llama_folder, tmp_path / "m.zse", calibrate=text, resume=True)
    assert report.resumed_groups > 1
    assert report.sha256 == whole.sha256


def test_progress_of_a_calibrated_conversion_ends_at_its_total(
    llama_folder: Path, tmp_path: Path, text: Path
) -> None:
    seen: list[ConversionProgress] = []
    convert_model(llama_folder, tmp_path / "m.zse", calibrate=text, progress=seen.append)
    done = [now for now in seen if now.stage == "convert"]
    assert [now.done_bytes for now in done] == sorted(now.done_bytes for now in done)
    assert done[-1].done_bytes == done[-1].total_bytes


def test_states_that_are_large_lie_in_a_file_and_are_the_same(
    llama_folder: Path, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = convert_model(llama_folder, tmp_path / "held.zse", calibrate=text)
    monkeypatch.setattr(walk_module, "_MOST_HELD_BYTES", 0)
    filed = convert_model(llama_folder, tmp_path / "filed.zse", calibrate=text)
    assert filed.sha256 == held.sha256


@pytest.mark.parametrize("stacks", ["products", "squares"])
def test_experts_are_calibrated_each_by_the_tokens_that_come_to_it(
    make_checkpoint, tmp_path: Path, text: Path, stacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stacks == "squares":
        monkeypatch.setattr(weights_module, "MOST_PRODUCT_BYTES", 0)
    folder = make_checkpoint(tmp_path / "model", "qwen3_moe", **shape_of("qwen3_moe"))
    convert_model(folder, tmp_path / "plain.zse")
    convert_model(folder, tmp_path / "m.zse", calibrate=text)
    name, experts = "layers.0.experts.gate_up.weight", shape_of("qwen3_moe")["num_experts"]
    with ZSEReader(tmp_path / "m.zse") as one, ZSEReader(tmp_path / "plain.zse") as other:
        one.verify()
        changed = (one.tensor(name) != other.tensor(name)).any(1).view(experts, -1).any(1)
        error = (one.tensor(name) - other.tensor(name)).norm() / other.tensor(name).norm()
    assert changed.sum() > 1  # one that few tokens come to is rounded as without data
    assert error < 0.3


@pytest.mark.parametrize(("family", "what"), [("qwen3_next", "linear"), ("deepseek_v2", "latent")])
def test_what_cannot_be_calibrated_is_refused_before_work_begins(
    make_checkpoint, tmp_path: Path, text: Path, family: str, what: str
) -> None:
    folder = make_checkpoint(tmp_path / "model", family, **shape_of(family))
    with pytest.raises(UnsupportedModelError, match=f"{what}.*calibration") as caught:
        convert_model(folder, tmp_path / "m.zse", calibrate=text)
    assert "Dense decoders and mixtures" in caught.value.hint
    assert not list(tmp_path.glob("m.zse*"))


@pytest.mark.parametrize("quantization", ["bf16", "fp16", "mxfp4"])
def test_schemes_that_data_does_not_help_are_refused(
    llama_folder: Path, tmp_path: Path, text: Path, quantization: str
) -> None:
    with pytest.raises(UsageError, match=f"{quantization} weights"):
        convert_model(llama_folder, tmp_path / "m.zse", quantization, calibrate=text)
