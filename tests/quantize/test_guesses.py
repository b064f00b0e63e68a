"""Heads that guess further tokens: kept whole where a checkpoint has them, and not loaded."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from family_shapes import shape_of
from mapped_files import present_bytes
from safetensors.torch import load_file, save_file

from zse.backends.cpu import page_mapping
from zse.engine.requirements import facts_of
from zse.errors import CheckpointError, FormatError, UnsupportedModelError
from zse.format.reader import ZSEReader
from zse.models.families import read_checkpoint
from zse.models.memory import ModelFacts, estimate_memory
from zse.models.runner import load_runner, spec_of
from zse.options import load_options
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_AROUND_BYTES = 64 << 10
SEES = {"architectures": ["Qwen3_5MoeForConditionalGeneration"]}
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_5": ("qwen3_5", {"mtp_num_hidden_layers": 1}),
    "qwen3_5_moe that sees": ("qwen3_5_moe", SEES),
    "glm4_moe": ("glm4_moe", {"num_nextn_predict_layers": 1}),
    "deepseek_v3": ("deepseek_v3", {}),
}
"""Names, families, and what their configurations say besides."""
DEEPSEEK = {
    "mtp.0.join.weight": "model.layers.2.eh_proj.weight",
    "mtp.0.embedding_norm.weight": "model.layers.2.enorm.weight",
    "mtp.0.stream_norm.weight": "model.layers.2.hnorm.weight",
    "mtp.0.o.weight": "model.layers.2.self_attn.o_proj.weight",
    "mtp.0.final_norm.weight": "model.layers.2.shared_head.norm.weight",
}
QWEN = {
    "mtp.0.join.weight": "mtp.fc.weight",
    "mtp.0.embedding_norm.weight": "mtp.pre_fc_norm_embedding.weight",
    "mtp.0.stream_norm.weight": "mtp.pre_fc_norm_hidden.weight",
    "mtp.0.o.weight": "mtp.layers.0.self_attn.o_proj.weight",
    "mtp.0.final_norm.weight": "mtp.norm.weight",
}


@pytest.fixture
def checkpoint(make_checkpoint, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a checkpoint, with its head unless told otherwise."""

    def make(kind: str, *, has_guesses: bool = True, **changes: Any) -> Path:
        family, values = CHECKPOINTS[kind]
        folder = tmp_path / f"checkpoint-{has_guesses}"
        config = {**shape_of(family), **values, **changes}
        return make_checkpoint(folder, family, has_guesses=has_guesses, **config)

    return make


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_head_is_a_group_behind_all_others_with_the_numbers_of_the_checkpoint(
    kind: str, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder, out = checkpoint(kind), tmp_path / "m.zse"
    report = convert_model(folder, out, "bf16")
    tensors = load_file(folder / "model.safetensors")
    with ZSEReader(out) as reader:
        reader.verify()
        assert [group.name for group in reader.header.groups][-2:] == ["final", "mtp.0"]
        assert {entry.name[:6] for entry in reader.tensors_of("mtp.0")} == {"mtp.0."}
        is_qwen = kind.startswith("qwen")
        for ours, theirs in (QWEN if is_qwen else DEEPSEEK).items():
            offset = 1.0 if "norm" in ours and is_qwen else 0.0
            assert torch.equal(reader.tensor(ours), tensors[theirs].float() + offset)
        is_mixture = "mtp.0.experts.gate_up.weight" in reader.names()
        assert is_mixture == (kind != "qwen3_5")
        assert spec_of(reader).guesses
    assert not any("left out" in warning for warning in report.warnings)


@pytest.mark.parametrize("kind", ["qwen3_5", "glm4_moe"])
def test_a_checkpoint_without_its_head_gives_the_same_file_but_for_that_group(
    kind: str, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    for has_guesses in (True, False):
        convert_model(checkpoint(kind, has_guesses=has_guesses), tmp_path / f"{has_guesses}.zse")
    with ZSEReader(tmp_path / "True.zse") as whole, ZSEReader(tmp_path / "False.zse") as bare:
        assert len(whole.header.groups) == len(bare.header.groups) + 1
        assert bare.header.loaded() is bare.header
        loaded = whole.header.loaded()
        assert [(g.name, g.sha256) for g in loaded.groups] == [
            (g.name, g.sha256) for g in bare.header.groups
        ]
        assert bytes(whole.weights()) == bytes(bare.weights())
        assert spec_of(whole) == spec_of(bare)
        for on_gpu in (True, False):
            mine, other = (
                estimate_memory(facts_of(reader.header), "", on_gpu=on_gpu)
                for reader in (whole, bare)
            )
            assert mine.total_bytes == other.total_bytes
            spare_bytes = sum(entry.length_bytes for entry in whole.tensors_of("mtp.0"))
            assert mine.stored_bytes == other.stored_bytes + spare_bytes


def test_an_estimate_before_the_conversion_counts_the_head_as_stored_and_not_as_loaded() -> None:
    config = {**shape_of("glm4_moe"), "architectures": ["Glm4MoeForCausalLM"]}
    bare, whole = (
        ModelFacts(spec=read_checkpoint({**config, "num_nextn_predict_layers": count}))
        for count in (0, 2)
    )
    mine, other = (estimate_memory(facts, "int8", on_gpu=True) for facts in (whole, bare))
    assert mine.total_bytes == other.total_bytes
    assert mine.stored_bytes > other.stored_bytes + other.weights_bytes // 10


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_a_start_reads_no_byte_of_a_head(
    device: str, checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ZSEReader, "release", lambda *_: None)  # else torch drops what it packed
    monkeypatch.setattr(page_mapping, "_FEWEST_BYTES", 1)
    out = tmp_path / "m.zse"
    convert_model(checkpoint("qwen3_5"), out, "bf16")
    with ZSEReader(out) as reader:
        options = load_options(device=device, num_blocks=4, max_sequences=1, threads=1)
        with closing(load_runner(reader, options)) as runner:
            runner.logits([5, 6, 7])
        if device == "cpu":
            page_mapping.begin_to_map(reader).join()
        layer, head = (
            reader.part(f"{name}.gate_up.weight", "data") for name in ("layers.2", "mtp.0")
        )
        assert len(head) == len(layer) > _AROUND_BYTES
        assert present_bytes(layer) >= len(layer)
        # The kernel maps a few pages around each that is read.
        assert present_bytes(head[_AROUND_BYTES:]) == 0


def test_half_a_head_is_left_out_and_said_to_be(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = edit(checkpoint("qwen3_5"), lambda tensors: tensors.pop("mtp.norm.weight"))
    report = convert_model(folder, tmp_path / "m.zse", "bf16")
    assert "such as mtp.fc.weight, were left out" in report.warnings[-1]
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert reader.header.groups[-1].name == "final"


def test_the_embedding_and_the_logits_that_a_head_repeats_are_left_out(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    def repeat(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.2.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.2.shared_head.head.weight"] = tensors["lm_head.weight"].clone()

    report = convert_model(edit(checkpoint("glm4_moe"), repeat), tmp_path / "m.zse", "bf16")
    assert report.warnings[-1].startswith("2 tensors that have no part in texts")


def test_a_head_of_another_shape_is_refused(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    def cut(tensors: dict[str, torch.Tensor]) -> None:
        tensors["mtp.fc.weight"] = tensors["mtp.fc.weight"][:, 1:].clone()

    with pytest.raises(CheckpointError, match=r"mtp\.fc\.weight has shape"):
        convert_model(edit(checkpoint("qwen3_5"), cut), tmp_path / "m.zse", "bf16")


def test_a_file_whose_weights_lie_in_the_spare_group_lacks_them(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "m.zse"
    convert_model(checkpoint("glm4_moe", has_guesses=False), out, "bf16")
    with ZSEReader(out) as reader:
        final = replace(reader.header.groups[-1], name="mtp.0")
        reader.header = replace(reader.header, groups=(*reader.header.groups[:-1], final))
        with pytest.raises(FormatError, match=r"lm_head|final_norm"):
            spec_of(reader)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("glm4_moe", "num_nextn_predict_layers", -1),
        ("glm4_moe", "num_nextn_predict_layers", 10**9),
        ("qwen3_5", "mtp_num_hidden_layers", 17),
        ("qwen3_5", "mtp_num_hidden_layers", "many"),
    ],
)
def test_a_number_of_heads_that_no_model_has_is_refused(kind: str, name: str, value: Any) -> None:
    family, values = CHECKPOINTS[kind]
    config = {**shape_of(family), **values, "model_type": family, name: value}
    with pytest.raises(UnsupportedModelError, match=name):
        read_checkpoint(config)
