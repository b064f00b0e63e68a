"""Write a GGUF file with the shapes of a model and random weights, for llama.cpp.

    python scripts/bench/peers/make_gguf.py --like qwen2.5-7b --kind q4_k -o 7b.gguf

``q4_k`` is llama.cpp's Q4_K_M mix (some matrices and the head in Q6_K), ``q4_0`` its fastest form;
``f16`` is what its own ``llama-quantize`` takes. With ``mxfp4`` all but experts is Q8_0.
Needs the ``gguf`` package. Greedy decoding of random weights costs what real ones cost.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter
from gguf import GGMLQuantizationType as Quant

sys.path.insert(0, str(Path(__file__).parents[1]))
from peers import gguf_families

DISTINCT_BLOCKS = 1 << 16
DISTINCT_VALUES = 2097143  # the largest prime below 2**21: no two rows are alike
SCALE = 0.004
MXFP4_EXPONENT = 119
KINDS = {"q4_k": Quant.Q4_K, "q4_0": Quant.Q4_0, "mxfp4": Quant.MXFP4, "f16": Quant.F16}
DENSE = {"qwen2": "qwen2", "llama": "llama"}


def make_gguf(path: Path, settings: dict, kind: str) -> None:
    """Write the file; it appears under its name when it is whole.

    Args:
        path: Where.
        settings: A config.json of the Qwen2 or Llama family, or of one of ``gguf_families``.
        kind: One of ``KINDS``.
    """
    draft = path.with_name(path.name + ".partial")
    form = gguf_families.FORMS.get(settings["model_type"])
    writer = GGUFWriter(draft, form.architecture if form else DENSE[settings["model_type"]])
    _add_facts(writer, settings)
    if form:
        gguf_families.add_facts(writer, settings)
    _add_tokenizer(writer, settings["vocab_size"])
    _add_tensors(writer, settings, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.replace(path)


def _add_facts(writer: GGUFWriter, settings: dict) -> None:
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    width = settings.get("intermediate_size") or settings["moe_intermediate_size"]
    writer.add_head_count(settings["num_attention_heads"])
    if settings["model_type"] != "gemma4_text":  # which tells it of each layer
        writer.add_feed_forward_length(width)
    if settings["model_type"] not in gguf_families.OWN_FACTS:
        writer.add_head_count_kv(settings["num_key_value_heads"])
    writer.add_rope_freq_base(settings["rope_theta"])
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    writer.add_vocab_size(settings["vocab_size"])


def _add_tokenizer(writer: GGUFWriter, vocabulary: int) -> None:
    """Add a byte-level vocabulary in which every id has a text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    tokens = letters + [f"tok{index}" for index in range(vocabulary - len(letters))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * vocabulary)
    writer.add_token_merges(["t o", "to k"])
    writer.add_eos_token_id(vocabulary - 1)
    writer.add_bos_token_id(vocabulary - 2)


def _add_tensors(writer: GGUFWriter, settings: dict, kind: str) -> None:
    base, blocks = KINDS[kind], _Blocks(writer)
    hidden, vocabulary = settings["hidden_size"], settings["vocab_size"]
    form = gguf_families.FORMS.get(settings["model_type"])
    table = Quant.Q8_0 if base is Quant.MXFP4 else base
    head = Quant.Q6_K if base in (Quant.Q4_0, Quant.Q4_K) else table
    is_table = form is not None and form.head_is_table
    blocks.add("token_embd.weight", vocabulary, hidden, head if is_table else table)
    blocks.floats("output_norm.weight", hidden)
    is_left_out = kind == "f16" and settings["tie_word_embeddings"]  # as llama-quantize finds it
    if not (is_table or is_left_out):
        blocks.add("output.weight", vocabulary, hidden, head)
    if form:
        gguf_families.add_ends(blocks, settings)
    for index in range(settings["num_hidden_layers"]):
        if settings["model_type"] in gguf_families.FORMS:
            gguf_families.add_layer(blocks, index, settings, base)
        else:
            _add_layer(blocks, index, settings, base)


def _add_layer(blocks: _Blocks, index: int, settings: dict, base: Quant) -> None:
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    layers, heads = settings["num_hidden_layers"], settings["num_attention_heads"]
    kv_heads = settings["num_key_value_heads"]
    head = settings.get("head_dim") or hidden // heads
    at = f"blk.{index}."
    # The layers that the K_M mix gives six bits: the first and last eighth, every third.
    eighth = layers // 8
    more = index < eighth or index >= 7 * layers // 8 or (index - eighth) % 3 == 2
    finer = Quant.Q6_K if base is Quant.Q4_K and more else base
    blocks.floats(at + "attn_norm.weight", hidden)
    blocks.floats(at + "ffn_norm.weight", hidden)
    blocks.add(at + "attn_q.weight", heads * head, hidden, base)
    blocks.add(at + "attn_k.weight", kv_heads * head, hidden, base)
    blocks.add(at + "attn_v.weight", kv_heads * head, hidden, finer)
    blocks.add(at + "attn_output.weight", hidden, heads * head, base)
    if settings["model_type"] == "qwen2":
        for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            blocks.floats(at + f"attn_{part}.bias", count * head, deviation=0.02)
    blocks.add(at + "ffn_gate.weight", inner, hidden, base)
    blocks.add(at + "ffn_up.weight", inner, hidden, base)
    blocks.add(at + "ffn_down.weight", hidden, inner, finer)


class _Blocks:
    """Random quantized blocks with harmless scales, added to a file."""

    def __init__(self, writer: GGUFWriter) -> None:
        self._writer = writer
        self._random = np.random.default_rng(0)

    def add(self, name: str, rows: int, columns: int, quant: Quant, stack: int = 0) -> None:
        """Add a matrix, or a stack of them."""
        if columns % GGML_QUANT_SIZES[quant][0]:
            quant = Quant.Q4_0 if columns % 32 == 0 else Quant.F16  # as llama.cpp falls back
        data = self.of(rows * (stack or 1), columns, quant)
        shape = (stack, rows, -1) if stack else data.shape
        self._writer.add_tensor(name, data.reshape(shape), raw_dtype=quant)

    def floats(self, name: str, *shape: int, deviation: float = 0.0) -> None:
        """Add numbers of 32 bits around zero, or ones."""
        drawn = self._random.normal(0, deviation, shape) if deviation else np.ones(shape)
        self._writer.add_tensor(name, drawn.astype(np.float32))

    def given(self, name: str, values: list[float]) -> None:
        """Add numbers of 32 bits as they are."""
        self._writer.add_tensor(name, np.asarray(values, np.float32))

    def of(self, rows: int, columns: int, quant: Quant) -> np.ndarray:
        """Return uint8 [rows, bytes of a row]; they repeat after 65,536."""
        if quant is Quant.F16:
            drawn = self._random.normal(0, 0.02, min(rows * columns, DISTINCT_VALUES))
            return np.resize(drawn.astype(np.float16), (rows, columns))
        block, size_bytes = GGML_QUANT_SIZES[quant]
        count = rows * columns // block
        shape = (min(count, DISTINCT_BLOCKS), size_bytes)
        data = self._random.integers(0, 256, shape, dtype=np.uint8)
        scale = np.full(len(data), SCALE, np.float16).view(np.uint8).reshape(-1, 2)
        if quant in (Quant.Q4_0, Quant.Q4_K, Quant.Q8_0):
            data[:, 0:2] = scale
        if quant is Quant.MXFP4:
            data[:, 0] = MXFP4_EXPONENT
        if quant is Quant.Q4_K:
            data[:, 2:4] = scale
        if quant is Quant.Q6_K:
            data[:, -2:] = np.full(len(data), SCALE / 8, np.float16).view(np.uint8).reshape(-1, 2)
        return np.resize(data, (count, size_bytes)).reshape(rows, -1)


def main() -> None:
    here = Path(__file__).resolve()
    sys.path[:0] = [str(here.parents[1]), str(here.parents[3])]
    from model_shapes import CONFIGS

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--like", choices=CONFIGS, required=True)
    parser.add_argument("--kind", choices=KINDS, default="q4_k")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.monotonic()
    make_gguf(options.out, CONFIGS[options.like], options.kind)
    size = options.out.stat().st_size
    print(f"{options.out}: {size / 1e9:.2f} GB in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
