"""A GGUF file becomes the file that its checkpoint becomes, byte for byte."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import gguf_changes
import numpy as np
import pytest
import torch
from gguf_files import write_gguf

from zse.cli import run
from zse.errors import CheckpointError, UnsupportedModelError, ZSEError
from zse.format.reader import ZSEReader
from zse.models.families import read_checkpoint, read_header
from zse.models.pooling import POOLING_SECTION
from zse.quantize.convert import convert_model
from zse.quantize.gguf.documents import config_in
from zse.quantize.gguf.documents import read_header as read_gguf_header
from zse.quantize.gguf.weights import GgufFile
from zse.quantize.locate import locate_model
from zse.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.quantize.conftest import MakeCheckpoint

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "num_hidden_layers": 4,
}  # fmt: skip
SHARED = {**MIXTURE, "shared_expert_intermediate_size": 96}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 48, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5, "norm_topk_prob": False,
    "rope_scaling": {
        "type": "yarn", "factor": 4.0, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip
SIGMOID = {
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 2, "topk_group": 1,
    "norm_topk_prob": True, "q_lora_rank": 48, "num_nextn_predict_layers": 0,
}  # fmt: skip
GEMMA4 = {
    "model_type": "gemma4_text", "num_hidden_layers": 6, "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "tie_word_embeddings": True,
    "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 96, "global_head_dim": 64,
    "num_global_key_value_heads": 1, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
    "moe_intermediate_size": 64, "final_logit_softcapping": 5.0,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip
FAMILIES = {
    "llama": {"num_hidden_layers": 2},
    "qwen2": {},
    "qwen3": {},
    "olmo2": {},
    "phi3": {"head_dim": 32, "pad_token_id": 0},
    "smollm3": {"num_hidden_layers": 4},
    "gemma2": {
        "query_pre_attn_scalar": 32, "sliding_window": 16, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {
        "model_type": "gemma3_text", "query_pre_attn_scalar": 32, "sliding_window": 16,
        "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": 10000.0,
    },
    "gemma4": GEMMA4,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 96},
    "qwen3_moe": {**MIXTURE, "norm_topk_prob": True},
    "olmo3": {"sliding_window": 16, "num_hidden_layers": 4},
    "granite": {
        "attention_multiplier": 0.25, "embedding_multiplier": 12.0, "residual_multiplier": 0.5,
        "logits_scaling": 8.0,
    },
    "starcoder2": {"norm_epsilon": 1e-5, "use_bias": True, "tie_word_embeddings": True},
    "gpt2": {
        "n_embd": 128, "n_head": 4, "n_layer": 2, "n_positions": 128, "layer_norm_epsilon": 1e-5,
        "num_key_value_heads": 4, "num_hidden_layers": 2, "intermediate_size": 512,
        "tie_word_embeddings": True,
    },
    "glm4": {"attention_bias": True, "partial_rotary_factor": 0.5},
    "glm4_moe": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
        "attention_bias": True, "use_qk_norm": True, "num_nextn_predict_layers": 1,
    },
    "gpt_oss": {
        "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64,
        "sliding_window": 16,
    },
    "qwen3_next": {**DELTA, **SHARED, "decoder_sparse_step": 1, "norm_topk_prob": True},
    "qwen3_5": DELTA,
    "bert": {"type_vocab_size": 2, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
    "deepseek_v2": LATENT,
    "deepseek_v3": {**LATENT, **SIGMOID},
    "qwen3_5_moe": {**DELTA, **SHARED},
}  # fmt: skip


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of every tensor of a file."""
    with ZSEReader(path) as reader:
        return {
            f"{tensor.name}.{part.role}": bytes(reader.part(tensor.name, part.role))
            for tensor in reader.header.tensors
            for part in tensor.parts
        }


def config_of(path: Path) -> dict:
    with ZSEReader(path) as reader:
        return reader.header.model_config["config"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_comes_out_as_from_its_checkpoint(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, family: str
) -> None:
    guesses = family in ("glm4_moe", "qwen3_next", "qwen3_5")
    folder = make_checkpoint(tmp_path / "hf", family, has_guesses=guesses, **FAMILIES[family])
    source = write_gguf(tmp_path / "m.gguf", folder, family)
    convert_model(folder, tmp_path / "a.zse", "int4", allow_no_tokenizer=True)
    convert_model(source, tmp_path / "b.zse", "int4", tokenizer=folder)
    expected, found = contents(tmp_path / "a.zse"), contents(tmp_path / "b.zse")
    assert found.keys() == expected.keys()
    # A logarithm of an exponential is not the number to the last bit.
    decays = {name for name in expected if ".decay." in name}
    assert {name for name in expected if found[name] != expected[name]} <= decays
    for name in decays:
        theirs, ours = (np.frombuffer(data, np.float32) for data in (expected[name], found[name]))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_gemma_4_is_described_as_in_its_checkpoint(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    exact = {"rms_norm_eps": 2.0**-17}  # which files keep in 32 bits
    folder = make_checkpoint(tmp_path / "hf", "gemma4", **GEMMA4, **exact)
    source = write_gguf(tmp_path / "m.gguf", folder, "gemma4")
    made = GgufFile(source)
    made.close()
    found = read_checkpoint(config_in(source, made.header))
    expected = read_checkpoint(json.loads((folder / "config.json").read_text()))
    assert found.layers == expected.layers
    assert found.embedding == expected.embedding
    assert found.head == expected.head


def test_experts_of_gemma_4_may_have_gate_and_up_apart(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "gemma4", **GEMMA4)
    joined = gguf_changes.changed

    def apart(family: str, config: dict, name: str, values: torch.Tensor) -> Iterator:
        for hf_name, found in joined(family, config, name, values):
            if not hf_name.endswith("gate_up_proj.weight"):
                yield hf_name, found
                continue
            layer = name.split(".")[2]
            for part, half in zip(("gate", "up"), found.chunk(2, 1), strict=True):
                yield f"blk.{layer}.ffn_{part}_exps.weight", half

    whole = write_gguf(tmp_path / "whole.gguf", folder, "gemma4")
    monkeypatch.setattr(gguf_changes, "changed", apart)
    parts = write_gguf(tmp_path / "parts.gguf", folder, "gemma4")
    assert b"ffn_up_exps" in parts.read_bytes()
    files = [GgufFile(whole), GgufFile(parts)]
    name = "model.layers.1.experts.gate_up_proj"
    found = [one.read_rows(one.tensors[name], 100, 300) for one in files]
    for one in files:
        one.close()
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention.sliding_window_pattern": None}, "which layers have a window"),
        ({"attention.sliding_window_pattern": [True] * 5}, "true or false for each layer"),
        ({"attention.head_count_kv": [2, 1, 2]}, "one for each layer"),
        ({"attention.head_count_kv": [2, 1, 2, 1, 2, 4]}, "no pattern of Gemma 4"),
        ({"feed_forward_length": [256, 256, 256, 128, 512, 512]}, "no pattern of Gemma 4"),
        ({"feed_forward_length": [256, 256, 256, 256, 768, 768]}, "no pattern of Gemma 4"),
        ({"attention.shared_kv_layers": 7}, "no pattern of Gemma 4"),
        ({"attention.shared_kv_layers": 6}, "no pattern of Gemma 4"),
        ({"attention.key_length": 96}, "rope_freqs are no factors"),
        ({"block_count": 1 << 31}, "a whole number, or one for each layer"),
    ],
)
def test_settings_that_are_no_gemma_4_are_refused(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, changes: dict, words: str
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "gemma4", **GEMMA4)
    named = {f"gemma4.{name}": value for name, value in changes.items()}
    source = write_gguf(tmp_path / "m.gguf", folder, "gemma4", **named)
    with pytest.raises(ZSEError, match=words):
        config_in(source, read_gguf_header(source))


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_attention_over_a_latent_is_described_as_in_its_checkpoint(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, family: str, is_older: bool
) -> None:
    exact = {"rms_norm_eps": 2.0**-17}  # which files keep in 32 bits
    folder = make_checkpoint(tmp_path / "hf", family, **FAMILIES[family], **exact)
    names = ("key_length_mla", "value_length_mla", "key_length", "value_length", "head_count_kv")
    older = dict(zip(names, (None, None, 48, 48, 4), strict=True)) if is_older else {}
    changes = {f"deepseek2.attention.{name}": value for name, value in older.items()}
    source = write_gguf(tmp_path / "m.gguf", folder, family, **changes)
    convert_model(folder, tmp_path / "a.zse", "int4", allow_no_tokenizer=True)
    convert_model(source, tmp_path / "b.zse", "int4", tokenizer=folder)
    expected, found = (
        read_header({"family": family, "config": config_of(tmp_path / name)})
        for name in ("a.zse", "b.zse")
    )
    assert found.layers == expected.layers


def test_matrices_of_other_heads_than_each_other_are_refused(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "deepseek_v2", **LATENT)
    source = write_gguf(tmp_path / "m.gguf", folder, "deepseek_v2")
    raw = source.read_bytes()
    name, shape = b"blk.0.attn_v_b.weight", np.array([64, 48, 4], np.uint64).tobytes()
    at = raw.index(shape, raw.index(name))
    other = np.array([64, 96, 2], np.uint64).tobytes()
    source.write_bytes(raw[:at] + other + raw[at + len(other) :])
    with pytest.raises(CheckpointError, match="not of the same heads of one latent"):
        convert_model(source, tmp_path / "m.zse", tokenizer=folder)


@pytest.mark.parametrize(("told", "mode"), [(1, "mean_tokens"), (2, "cls_token")])
def test_how_an_embedder_makes_vectors_is_kept(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, told: int, mode: str
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "bert", **FAMILIES["bert"])
    source = write_gguf(tmp_path / "m.gguf", folder, "bert", **{"bert.pooling_type": told})
    convert_model(source, tmp_path / "m.zse", tokenizer=folder)
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert json.loads(bytes(reader.section(POOLING_SECTION))) == {f"pooling_mode_{mode}": True}


def test_an_encoder_that_is_no_bert_is_refused(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "bert", **FAMILIES["bert"])
    kind = {"tokenizer.ggml.model": "t5"}
    source = write_gguf(tmp_path / "m.gguf", folder, "bert", **kind)
    with pytest.raises(UnsupportedModelError, match="tokenizer of kind 't5', as RoBERTa's"):
        convert_model(source, tmp_path / "m.zse", tokenizer=folder)


def test_numbers_of_blocks_are_quantized_from_what_they_stand_for(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "qwen2")
    exact, coarse = (
        write_gguf(tmp_path / f"{kind}.gguf", folder, "qwen2", kind) for kind in ("F32", "Q8_0")
    )
    for source in (exact, coarse):
        convert_model(source, source.with_suffix(".zse"), "fp16", tokenizer=folder)
    found = [contents(source.with_suffix(".zse")) for source in (exact, coarse)]
    assert found[0].keys() == found[1].keys()
    assert found[0] != found[1]


def test_a_file_is_served_under_its_own_name_and_converted_once(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "llama", num_hidden_layers=1)
    settings = Settings(cache_dir=tmp_path / "cache")
    source = write_gguf(tmp_path / "m.gguf", folder, "llama", **words(96))
    first = locate_model(source, settings)
    assert locate_model(source, settings) == first
    assert first.name.startswith("m-int4-")
    source.touch()
    write_gguf(source, folder, "llama", **words(96), **{"llama.context_length": 64})
    assert locate_model(source, settings) != first


def words(count: int) -> dict:
    """Settings of a tokenizer of single letters."""
    tokens = [chr(0x100 + number) for number in range(count)]
    tokens[-1] = tokens[0] + tokens[1]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * count,
        "tokenizer.ggml.merges": [f"{tokens[0]} {tokens[1]}"],
    }


def test_llama_3_says_its_rotary_scaling_by_factors(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    import gguf
    import numpy as np

    from zse.models.rope import RoPESpec, read_scaling
    from zse.quantize.gguf.architectures import ARCHITECTURES
    from zse.quantize.gguf.config import config_of as config_of_header
    from zse.quantize.gguf.documents import read_header

    folder = make_checkpoint(tmp_path / "hf", "llama", num_hidden_layers=1)
    source = write_gguf(tmp_path / "m.gguf", folder, "llama")
    scaling = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    _, made = read_scaling(scaling, 128)
    plain, stretched = (
        np.array(RoPESpec(theta=10000.0, rotary_dim=32, scaling=one).inverse_frequencies())
        for one in (None, made)
    )
    factors = (plain / stretched).astype(np.float32).tolist()
    found = config_of_header(
        read_header(source), "llama", ARCHITECTURES["llama"], "m.gguf", factors
    )
    assert found["rope_scaling"] == scaling
    with pytest.raises(UnsupportedModelError, match="not Llama 3's"):
        config_of_header(
            read_header(source),
            "llama",
            ARCHITECTURES["llama"],
            "m.gguf",
            [*factors[:-2], 5.0, 32.0],
        )
    assert gguf.GGUFReader(source).tensors


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama.block_count": None}, "does not say llama.block_count"),
        ({"llama.block_count": "four"}, "expected a whole number"),
        (
            {"llama.attention.head_count": 3, "llama.attention.head_count_kv": 3},
            "not those of 3 heads",
        ),
        ({"llama.block_count": 4}, "no tensor model.layers.3"),
        ({"llama.embedding_length": 64}, "has shape"),
        ({"llama.rope.scaling.type": "longrope"}, "stretches its rotary embedding by 'longrope'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_work_begins(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, changes: dict, words: str
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "llama")
    source = write_gguf(tmp_path / "m.gguf", folder, "llama", **changes)
    with pytest.raises(ZSEError, match=words):
        convert_model(source, tmp_path / "m.zse", tokenizer=folder)
    assert not list(tmp_path.glob("m.zse*"))


def test_an_architecture_that_is_not_read_names_those_that_are(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "llama")
    source = write_gguf(tmp_path / "m.gguf", folder, "llama", **{"general.architecture": None})
    data = source.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0rwkv9", 1)
    source.write_bytes(data)
    with pytest.raises(UnsupportedModelError, match="'rwkv9'") as caught:
        convert_model(source, tmp_path / "m.zse", tokenizer=folder)
    assert "qwen3moe" in caught.value.hint
    assert run(["inspect", str(source)]) == 0
    assert "rwkv9" in capsys.readouterr().out


def test_a_file_without_a_tokenizer_needs_one(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "llama")
    source = write_gguf(tmp_path / "m.gguf", folder, "llama")
    with pytest.raises(CheckpointError, match=r"holds no tokenizer\.json"):
        convert_model(source, tmp_path / "m.zse")


@pytest.mark.parametrize(
    ("kind", "words", "advice"),
    [
        ("adapter", "LoRA adapter", "--lora"),
        ("mmproj", "projector of pictures", "own .gguf file"),
        ("imatrix", "what inputs count", "own .gguf file"),
        ("vocab", "without weights", "own .gguf file"),
    ],
)
def test_files_that_are_no_models_are_called_what_they_are(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, kind: str, words: str, advice: str
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "llama", num_hidden_layers=1)
    source = write_gguf(tmp_path / "m.gguf", folder, "llama", **{"general.type": kind})
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        convert_model(source, tmp_path / "m.zse", tokenizer=folder)
    assert advice in caught.value.hint


def test_the_guide_names_every_architecture_and_type_that_is_kept() -> None:
    from pathlib import Path

    from zse.quantize.gguf.architectures import ARCHITECTURES, VARIANTS

    guide = Path(__file__).parents[3] / "docs" / "guides" / "convert.md"
    told = guide.read_text().split("Architectures: ")[1].split("\n")[0]
    names = {name.strip(" .") for name in re.sub(r"\([^)]*\)", "", told).split(",")}
    assert names == set(ARCHITECTURES) - set(VARIANTS)
