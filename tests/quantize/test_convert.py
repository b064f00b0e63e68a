from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from zse.errors import CheckpointError, ConversionError, DiskFullError
from zse.format.as_torch import stored_parts
from zse.format.reader import ZSEReader
from zse.format.schemes import Scheme
from zse.format.writer import ZSEWriter
from zse.quantize import stream
from zse.quantize.convert import ConversionProgress, convert_model
from zse.quantize.scheme import quantize_rows
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from pathlib import Path

QUANTIZATIONS = ["int4", "int3", "int2", "nf4", "nl4", "mxfp4", "int8", "fp16", "bf16"]
# Relative error of a Gaussian weight, generously above what each scheme does.
TOLERANCE = {
    "int4": 0.12,
    "int3": 0.22,
    "int2": 0.38,
    "nf4": 0.12,
    "nl4": 0.08,
    "mxfp4": 0.15,
    "int8": 0.02,
    "fp16": 1e-3,
    "bf16": 1e-9,
}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def joined(tensors: dict[str, torch.Tensor], *names: str) -> torch.Tensor:
    return torch.cat([tensors[name] for name in names]).float()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_file_holds_the_checkpoint(llama_folder: Path, tmp_path: Path, quantization: str) -> None:
    out = tmp_path / "m.zse"
    report = convert_model(llama_folder, out, quantization)
    tensors = load_file(llama_folder / "model.safetensors")
    layer = "model.layers.2."
    attention = [f"{layer}self_attn.{part}_proj.weight" for part in "qkv"]
    expected = {
        "embed.weight": joined(tensors, "model.embed_tokens.weight"),
        "layers.2.qkv.weight": joined(tensors, *attention),
        "layers.2.o.weight": joined(tensors, f"{layer}self_attn.o_proj.weight"),
        "layers.2.gate_up.weight": joined(
            tensors, f"{layer}mlp.gate_proj.weight", f"{layer}mlp.up_proj.weight"
        ),
        "layers.2.down.weight": joined(tensors, f"{layer}mlp.down_proj.weight"),
        "layers.2.mlp_norm.weight": joined(tensors, f"{layer}post_attention_layernorm.weight"),
        "final_norm.weight": joined(tensors, "model.norm.weight"),
        "lm_head.weight": joined(tensors, "lm_head.weight"),
    }
    with ZSEReader(out) as reader:
        reader.verify()
        for name, weight in expected.items():
            assert relative_error(reader.tensor(name), weight) < TOLERANCE[quantization], name
        assert reader.entry("layers.0.o.weight").scheme == quantization
        assert reader.entry("layers.0.attn_norm.weight").scheme is Scheme.FP32
        assert reader.header.architecture == "llama"
    assert report.size_bytes == out.stat().st_size
    assert report.tensors == sum(report.schemes.values())


@pytest.mark.parametrize("quantization", ["int4", "nf4", "int8"])
def test_streamed_parts_equal_the_whole_matrix_quantized_at_once(
    llama_folder: Path, tmp_path: Path, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "QUANTIZED_CHUNK_ELEMENTS", 128 * 7)
    convert_model(llama_folder, tmp_path / "m.zse", quantization)
    weight = load_file(llama_folder / "model.safetensors")["model.layers.0.self_attn.o_proj.weight"]
    with ZSEReader(tmp_path / "m.zse") as reader:
        entry = reader.entry("layers.0.o.weight")
        found = stored_parts(reader, entry.name)
        expected = quantize_rows(entry.scheme, weight.float(), entry.group_size)
        for role, part in expected.items():
            assert torch.equal(found[role], part)


@pytest.mark.parametrize("family", ["granite", "mistral", "qwen2", "qwen3", "starcoder2"])
def test_every_family_converts(make_checkpoint, tmp_path: Path, family: str) -> None:
    folder = make_checkpoint(tmp_path / "model", family, tie_word_embeddings=True, shards=2)
    convert_model(folder, tmp_path / "m.zse", "int4")
    with ZSEReader(tmp_path / "m.zse") as reader:
        reader.verify()
        assert reader.header.architecture == family
        assert reader.entry("embed.weight").scheme is Scheme.INT8  # it is the head as well
        assert "lm_head.weight" not in reader.names()
        assert ("layers.0.qkv.bias" in reader.names()) == (family in ("qwen2", "starcoder2"))
        assert ("layers.0.q_norm.weight" in reader.names()) == (family == "qwen3")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_norms_are_exact_whatever_the_checkpoint_has(
    make_checkpoint, tmp_path: Path, dtype: str
) -> None:
    folder = make_checkpoint(tmp_path / "model", torch_dtype=dtype)
    expected = load_file(folder / "model.safetensors")["model.norm.weight"]
    assert expected.dtype is getattr(torch, dtype)
    for quantization in ("int4", "fp16"):
        convert_model(folder, tmp_path / "m.zse", quantization, force=True)
        with ZSEReader(tmp_path / "m.zse") as reader:
            assert reader.entry("final_norm.weight").scheme is Scheme.FP32
            assert torch.equal(reader.tensor("final_norm.weight"), expected.float())
            embedding = reader.entry("embed.weight").scheme
            assert embedding is (Scheme.INT8 if quantization == "int4" else Scheme.FP16)


def test_same_input_gives_the_same_bytes_on_any_number_of_threads(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    for threads, chunk in (("1", 1 << 18), ("2", 1 << 12), ("5", 1 << 10)):
        monkeypatch.setenv("ZSE_THREADS", threads)
        monkeypatch.setattr(stream, "QUANTIZED_CHUNK_ELEMENTS", chunk)
        convert_model(llama_folder, tmp_path / "m.zse", "int4", force=True)
        digests.add(sha256(tmp_path / "m.zse"))
    assert len(digests) == 1


def test_sharding_does_not_change_the_bytes(make_checkpoint, tmp_path: Path) -> None:
    for shards in (1, 3):
        folder = make_checkpoint(tmp_path / str(shards) / "model", shards=shards)
        convert_model(folder, tmp_path / f"{shards}.zse", "nf4")
    assert sha256(tmp_path / "1.zse") == sha256(tmp_path / "3.zse")


def test_provenance_has_options_and_no_path(llama_folder: Path, tmp_path: Path) -> None:
    convert_model(llama_folder, tmp_path / "m.zse", "int4", group_size=64)
    with ZSEReader(tmp_path / "m.zse") as reader:
        provenance = reader.header.provenance
    assert provenance["source"] == "little-llama"
    assert provenance["options"] == {
        "quantization": "int4",
        "group_size": 64,
        "attention": "same",
        "lm_head": "int8",
        "embedding": "int8",
    }
    assert str(llama_folder.parent) not in json.dumps(dict(provenance))


def test_report_has_the_digests_of_the_file_and_of_its_header(
    llama_folder: Path, tmp_path: Path
) -> None:
    report = convert_model(llama_folder, tmp_path / "m.zse", "int8")
    assert report.sha256 == sha256(tmp_path / "m.zse")
    assert (tmp_path / "m.zse").read_bytes()[16:48].hex() == report.header_sha256


def test_metadata_files_become_sections(make_checkpoint, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    template = "{{ messages[0].content }}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    convert_model(folder, tmp_path / "m.zse", "bf16")
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert bytes(reader.section("config.json")) == (folder / "config.json").read_bytes()
        assert bytes(reader.section("chat_template.jinja")).decode() == template
        assert reader.header.model_config["eos_token_ids"] == [2, 3]
        tokenizer = (folder / "tokenizer.json").read_bytes()
        assert bytes(reader.section("tokenizer.json")) == tokenizer


def test_template_file_wins_over_the_tokenizer_configuration(
    make_checkpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model")
    named = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    convert_model(folder, tmp_path / "m.zse", "bf16")
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert bytes(reader.section("chat_template.jinja")) == b"b"
    (folder / "chat_template.jinja").write_text("c")
    convert_model(folder, tmp_path / "m.zse", "bf16", force=True)
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert bytes(reader.section("chat_template.jinja")) == b"c"


def test_progress_ends_at_the_total(llama_folder: Path, tmp_path: Path) -> None:
    seen: list[ConversionProgress] = []
    convert_model(llama_folder, tmp_path / "m.zse", "int4", progress=seen.append)
    assert list(dict.fromkeys(item.stage for item in seen)) == ["convert", "checksum"]
    for stage in ("convert", "checksum"):
        done = [item.done_bytes for item in seen if item.stage == stage]
        assert done == sorted(done)
    assert seen[0].done_bytes == 0
    assert all(item.done_bytes == item.total_bytes for item in (seen[-2], seen[-1]))


def test_non_finite_weight_names_its_tensor_and_leaves_nothing(
    make_checkpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConversionError, match=r"layers\.1\.down\.weight .*down_proj.*rows 0 to"):
        convert_model(folder, out / "m.zse", "int4")
    assert list(out.iterdir()) == []


KILL_SCRIPT = """
import os, signal, sys
import torch
from zse.quantize.convert import convert_model
torch.set_num_threads(1)
folder, out, *marks = sys.argv[1:]
for mark in marks:
    child = os.fork()
    if child == 0:
        def stop(progress):
            if progress.done_bytes >= float(mark) * progress.total_bytes:
                os.kill(os.getpid(), signal.SIGKILL)
        convert_model(folder, f"{out}/{mark}.zse", "int4", progress=stop)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
"""


def test_killed_at_any_moment_and_resumed_gives_the_same_bytes(
    make_checkpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model", num_hidden_layers=6)
    expected = convert_model(folder, tmp_path / "whole.zse", "int4")
    # At the start, at a place that is new on every run, and near the end.
    marks = ["0.0", f"{random.uniform(0.2, 0.8):.3f}", "0.99"]
    subprocess.run(
        [sys.executable, "-c", KILL_SCRIPT, str(folder), str(tmp_path), *marks],
        check=True,
        env=subprocess_environment(OMP_NUM_THREADS="1"),
    )
    for mark in marks:
        out = tmp_path / f"{mark}.zse"
        assert not out.exists()
        report = convert_model(folder, out, "int4", resume=True)
        assert report.sha256 == expected.sha256, mark
        assert sha256(out) == sha256(tmp_path / "whole.zse"), mark
        assert (report.resumed_groups > 0) == (float(mark) > 0.1)
        assert not out.with_name(out.name + ".partial").exists()


def test_interrupt_leaves_no_file_under_the_final_name(llama_folder: Path, tmp_path: Path) -> None:
    def interrupt(progress: ConversionProgress) -> None:
        if progress.done_bytes > progress.total_bytes / 2:
            raise KeyboardInterrupt

    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            convert_model(
                llama_folder, tmp_path / "m.zse", "int4", resume=resume, progress=interrupt
            )
        assert not (tmp_path / "m.zse").exists()
        assert (tmp_path / "m.zse.partial").exists() == resume


def test_resume_with_other_options_starts_again(llama_folder: Path, tmp_path: Path) -> None:
    def interrupt(progress: ConversionProgress) -> None:
        if progress.done_bytes > progress.total_bytes / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_model(llama_folder, tmp_path / "m.zse", "int4", resume=True, progress=interrupt)
    report = convert_model(llama_folder, tmp_path / "m.zse", "nf4", resume=True)
    assert report.resumed_groups == 0
    assert report.sha256 == convert_model(llama_folder, tmp_path / "n.zse", "nf4").sha256


def test_disk_without_room_is_told_before_anything_is_written(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    seen: list[ConversionProgress] = []
    with pytest.raises(DiskFullError, match="1000 are free"):
        convert_model(llama_folder, tmp_path / "m.zse", "int4", progress=seen.append)
    assert seen == []
    assert list(tmp_path.iterdir()) == []


def test_disk_that_fills_up_on_the_way_leaves_nothing(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ZSEWriter.write_part

    def fill(writer: ZSEWriter, name: str, *rest: object, **more: object) -> None:
        if name == "layers.1.o.weight":
            raise DiskFullError("no room")
        real(writer, name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ZSEWriter, "write_part", fill)
    with pytest.raises(DiskFullError):
        convert_model(llama_folder, tmp_path / "m.zse", "int4")
    assert list(tmp_path.iterdir()) == []


def test_tensor_file_that_shrinks_on_the_way_is_an_error(make_checkpoint, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    weights = folder / "model.safetensors"

    def shrink(progress: ConversionProgress) -> None:
        if progress.done_bytes == 0:
            weights.write_bytes(weights.read_bytes()[:5000])

    with pytest.raises(CheckpointError, match="cut short"):
        convert_model(folder, tmp_path / "m.zse", "int4", progress=shrink)
