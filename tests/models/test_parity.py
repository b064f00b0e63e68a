"""Logits equal those of transformers in float32, through the paged path, for every family.

The CPU's kernels keep to it where nothing is rounded: float32 activations, keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import ENCODERS, shape_of
from logits import as_tensor

from zse.backends.cpu.supported import check_supported
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.errors import UnsupportedModelError
from zse.format import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.decoder import logits_of
from zse.models.families import all_families
from zse.models.runner import ModelRunner, load_runner, spec_of
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable

TOLERANCE = 1e-4
FAMILIES = sorted(set(all_families()) - ENCODERS)
SCHEMES = ("fp32", "fp16", "bf16", "int8", "int4", "int3", "int2", "nf4", "nl4", "mxfp4")
OF_EVERY_SCHEME = frozenset({"llama", "mixtral", "qwen3_5_moe"})
"""A dense model, a mixture and a hybrid: the others differ from them in what no scheme touches."""
FEW_SCHEMES = {"gpt_oss": ("fp32", "int4", "mxfp4")}
IN_SCHEMES = [
    (family, scheme)
    for family in FAMILIES
    for scheme in (
        SCHEMES if family in OF_EVERY_SCHEME else FEW_SCHEMES.get(family, ("fp32", "int4"))
    )
]
WAYS: tuple[dict[str, Any], ...] = (
    {"device": "cpu", "exact_activations": True, "kv_dtype": "fp32"},
    {"device": "torch"},
)
WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 9},
    "starcoder2": {"sliding_window": 9},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen3": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
ROPES: dict[str, dict[str, Any]] = {
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
CONFIGURED: dict[str, dict[str, dict[str, Any]]] = {
    "gpt_oss": {
        "the limit of gate and up": {"swiglu_limit": 0.2},
        "experts of a token": {"num_experts_per_tok": 3},
        "yarn in whole dimensions": {
            "rope_parameters": {**shape_of("gpt_oss")["rope_parameters"], "truncate": True}
        },
        "which layers have the window": {
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 5,
        },
    },
    "deepseek_v2": {
        "a latent of queries, and biases": {"q_lora_rank": 48, "attention_bias": True},
        "groups": {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
        "a plain rotation": {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
    },
    "deepseek_v3": {
        "halves that turn": {"rope_interleave": False, "q_lora_rank": None},
        "weights as they are": {"norm_topk_prob": False, "first_k_dense_replace": 0},
    },
}


def prompt(length: int = 45) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 320, (length,), generator=generator).tolist()


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    error = (found - expected).abs().max() / expected.abs().max()
    assert float(error) < TOLERANCE


def logits_in_chunks(
    runner: ModelRunner, token_ids: list[int], lengths: list[int], blocks: list[int]
) -> torch.Tensor:
    """Feed a sequence piece by piece into the runner's own pool; return all logits."""
    backend, rows, start = runner._backend, [], 0
    for length in lengths:
        piece = token_ids[start : start + length]
        chunk = SequenceChunk(0, piece, start, blocks, kind_of(length), wants_logits=True)
        step = backend.begin(StepBatch(chunks=[chunk], sampling=[()]))
        rows.append(logits_of(backend, runner.spec, step))
        start += length
    assert start == len(token_ids)
    return as_tensor(backend.join_rows(rows))


def logits_of_chunks(runner: ModelRunner, *chunks: SequenceChunk) -> torch.Tensor:
    """Compute one step; return the logits of its tokens."""
    backend = runner._backend
    step = backend.begin(StepBatch(chunks=chunks, sampling=[()] * len(chunks)))
    return as_tensor(backend.join_rows([logits_of(backend, runner.spec, step)]))


def check_pair(pair: Any) -> None:
    """Compare a whole prompt, the prompt in chunks, and step-by-step decoding."""
    expected = pair.logits(prompt())
    for way in ways_of(pair):
        check_way(pair, way, expected)


def ways_of(pair: Any) -> list[dict[str, Any]]:
    """Return the backends that compute the model: torch computes them all."""
    with ZSEReader(pair.path) as reader:
        spec = spec_of(reader)
    try:
        check_supported(spec)
    except UnsupportedModelError:
        return [way for way in WAYS if way["device"] == "torch"]
    return list(WAYS)


def check_way(pair: Any, way: dict[str, Any], expected: torch.Tensor) -> None:
    token_ids = prompt()
    runner = load_runner(pair.path, load_options(**way, num_blocks=16, block_size=8, threads=1))
    try:
        assert_close(as_tensor(runner.logits(token_ids)), expected)
        scattered = [9, 2, 14, 5, 11, 0]
        assert_close(logits_in_chunks(runner, token_ids, [7, 1, 20, 17], scattered), expected)
        steps = [20] + [1] * 25
        assert_close(logits_in_chunks(runner, token_ids, steps, scattered[::-1]), expected)
    finally:
        runner.close()


@pytest.mark.parametrize(("family", "quantization"), IN_SCHEMES)
def test_logits_match_transformers(
    family: str, quantization: str, make_pair: Callable[..., Any]
) -> None:
    check_pair(make_pair(family, quantization))


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_of_a_mixed_batch_match_transformers(
    family: str, make_pair: Callable[..., Any]
) -> None:
    """One sequence decodes beside the rest of a prompt and a whole one."""
    pair = make_pair(family, "bf16")
    sequences = {0: (prompt(30), 29, [7, 0, 12, 3]), 1: (prompt(21), 10, [1, 9, 4]), 2: (prompt(12), 0, [2, 5])}  # fmt: skip
    wanted = [pair.logits(ids)[known:] for ids, known, _ in sequences.values()]
    for way in ways_of(pair):
        runner = load_runner(pair.path, load_options(**way, num_blocks=16, block_size=8, threads=1))
        try:
            for slot, (ids, known, blocks) in sequences.items():
                if known:
                    logits_of_chunks(
                        runner, SequenceChunk(slot, ids[:known], 0, blocks, "prefill", True)
                    )
            chunks = [
                SequenceChunk(slot, ids[known:], known, blocks, kind_of(len(ids) - known), True)
                for slot, (ids, known, blocks) in sequences.items()
            ]
            assert_close(logits_of_chunks(runner, *chunks), torch.cat(wanted))
        finally:
            runner.close()


@pytest.mark.parametrize("family", list(WINDOWED))
def test_window_shorter_than_the_prompt_matches_transformers(
    family: str, make_pair: Callable[..., Any]
) -> None:
    pair = make_pair(family, "bf16", **WINDOWED[family])
    check_pair(pair)
    unwindowed = make_pair(family, "bf16").logits(prompt())
    assert not torch.allclose(pair.logits(prompt()), unwindowed, rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "option"), [(family, name) for family in CONFIGURED for name in CONFIGURED[family]]
)
def test_what_a_checkpoint_configures_matches_transformers(
    family: str, option: str, make_pair: Callable[..., Any]
) -> None:
    pair = make_pair(family, "bf16", **CONFIGURED[family][option])
    check_pair(pair)
    usual = make_pair(family, "bf16").logits(prompt())
    assert not torch.allclose(pair.logits(prompt()), usual, rtol=1e-3)


@pytest.mark.parametrize("kind", list(ROPES))
def test_rope_scaling_matches_transformers(kind: str, make_pair: Callable[..., Any]) -> None:
    check_pair(make_pair("llama", "bf16", rope_parameters=ROPES[kind]))


LONG: dict[str, Any] = {
    "original_max_position_embeddings": 48,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + index / 8 for index in range(8)],
        "long_factor": [2.0 + index for index in range(8)],
    },
}


@pytest.mark.parametrize("way", WAYS, ids=["cpu", "torch"])
@pytest.mark.parametrize(("context", "length"), [(48, 45), (256, 60)], ids=["short", "long"])
def test_the_context_of_a_start_chooses_the_frequencies_of_longrope(
    context: int, length: int, way: dict[str, Any], make_pair: Callable[..., Any]
) -> None:
    """transformers goes by the length so far; keys that are kept would be of two kinds then."""
    pair = make_pair("phi3", "fp32", **LONG)
    options = load_options(**way, num_blocks=16, block_size=8, threads=1, max_context=context)
    runner = load_runner(pair.path, options)
    try:
        expected = pair.logits(prompt(length))
        assert_close(as_tensor(runner.logits(prompt(length))), expected)
        pieces = [7, 1, length - 8]
        assert_close(logits_in_chunks(runner, prompt(length), pieces, list(range(8))), expected)
    finally:
        runner.close()


@pytest.mark.parametrize("quantization", ["bf16", "int8", "int4"])
def test_tied_embedding_matches_transformers(
    quantization: str, make_pair: Callable[..., Any]
) -> None:
    check_pair(make_pair("qwen3", quantization, tie_word_embeddings=True))


def test_odd_shapes_match_transformers(make_pair: Callable[..., Any]) -> None:
    shape = {
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 24,
        "vocab_size": 333,
    }
    for quantization in ("int4", "int8", "nf4", "fp16"):
        check_pair(make_pair("llama", quantization, **shape))


def test_greedy_tokens_match_transformers_generate(make_pair: Callable[..., Any]) -> None:
    pair = make_pair("llama", "int4")
    token_ids, new_tokens = prompt(21), 12
    expected = pair.reference.generate(
        torch.tensor([token_ids]),
        attention_mask=torch.ones(1, len(token_ids), dtype=torch.int64),
        generation_config=transformers.GenerationConfig(
            do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
        ),
    )[0, len(token_ids) :].tolist()
    runner = load_runner(pair.path, load_options(**WAYS[0], num_blocks=8, block_size=8, threads=1))
    output: list[int] = []
    pending, start = token_ids, 0
    while len(output) < len(expected):
        chunk = SequenceChunk(0, pending, start, range(8), kind_of(len(pending)))
        row = SamplingRow(temperature=0.0)
        ((sampled,),) = runner.execute(StepBatch(chunks=[chunk], sampling=[[row]]))
        start += len(pending)
        pending = [sampled.token_id]
        output += pending
    runner.close()
    assert output == expected


@pytest.mark.parametrize(
    ("kv_dtype", "tolerance", "share"),
    [("auto", 4e-3, 1 / 2), ("fp16", 4e-3, 1 / 2), ("bf16", 3e-2, 1 / 2), ("int8", 3e-2, 17 / 64)],
)
def test_a_narrower_cache_is_close_and_smaller(
    kv_dtype: str, tolerance: float, share: float, make_pair: Callable[..., Any]
) -> None:
    pair = make_pair("llama", "bf16")
    wide = load_runner(pair.path, load_options(num_blocks=8, threads=1, kv_dtype="fp32"))
    narrow = load_runner(pair.path, load_options(num_blocks=8, threads=1, kv_dtype=kv_dtype))
    found, expected = as_tensor(narrow.logits(prompt())), pair.logits(prompt())
    assert float((found - expected).abs().max() / expected.abs().max()) < tolerance
    assert narrow.memory_bytes()["kv_cache"] == wide.memory_bytes()["kv_cache"] * share
    narrow.close()
    wide.close()


def test_configuration_of_the_file_is_the_checkpoints(make_pair: Callable[..., Any]) -> None:
    pair = make_pair("qwen2", "bf16", **WINDOWED["qwen2"])
    with_runner = load_runner(pair.path, load_options(num_blocks=1, threads=1))
    assert [layer.mixer.window for layer in with_runner.spec.layers] == [None, 9]
    assert with_runner.vocab_size == 320
    with_runner.close()


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu2"])
def test_biases_and_activations_match_transformers(
    activation: str, make_pair: Callable[..., Any]
) -> None:
    changes = {"attention_bias": True, "mlp_bias": True, "hidden_act": activation}
    check_pair(make_pair("llama", "bf16", **changes))


@pytest.mark.parametrize("quantization", ["fp32", "int8"])
def test_the_multipliers_of_granite_match_transformers(
    quantization: str, make_pair: Callable[..., Any]
) -> None:
    changes = {
        "attention_multiplier": 0.0625,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
        "tie_word_embeddings": True,
    }
    pair = make_pair("granite", quantization, **changes)
    check_pair(pair)
    plain = make_pair("granite", quantization, tie_word_embeddings=True).logits(prompt())
    assert not torch.allclose(pair.logits(prompt()), plain, rtol=1e-2)
