"""Keep a little of SmolLM2 in ``tests/data/smollm2``, for every run of the tests.

Its tokenizer whole; what ``transformers`` makes of lines and conversations with it; and a slice of
its weights, a model of its own: the first vocabulary entries, a layer, one group of attention
heads, some rows of the MLP, with the logits that ``transformers`` computes of them in float32.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "tests" / "data" / "smollm2"
LAYERS, VOCABULARY, INTERMEDIATE = 1, 288, 128
TOKENS = 16
MATRICES = {
    # One key head of 64 and the three query heads that read it.
    "self_attn.q_proj": (slice(0, 192), slice(None)),
    "self_attn.k_proj": (slice(0, 64), slice(None)),
    "self_attn.v_proj": (slice(0, 64), slice(None)),
    "self_attn.o_proj": (slice(None), slice(0, 192)),
    "mlp.gate_proj": (slice(0, INTERMEDIATE), slice(None)),
    "mlp.up_proj": (slice(0, INTERMEDIATE), slice(None)),
    "mlp.down_proj": (slice(None), slice(0, INTERMEDIATE)),
}


def capture(checkpoint: Path, target: Path = TARGET) -> None:
    """Write what the tests read; the same checkpoint and ``transformers`` give the same bytes."""
    target.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    # Without its indents the file is half as large; the order of its entries stays.
    document = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    packed = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    _write_packed(target / "tokenizer.json.xz", packed)
    (target / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")
    _write(target / "texts.json", captured_texts(tokenizer))
    config, weights = sliced(checkpoint)
    _write_packed(target / "slice.safetensors.xz", save(weights, {"format": "pt"}))
    _write(target / "slice_config.json", config)
    _write(target / "logits.json", captured_logits(config, weights))


def captured_texts(tokenizer: Any) -> dict[str, Any]:
    """Return lines with their token ids, and conversations with their rendered texts."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from real_texts import conversations
    from tokenizer_samples import mixed_lines

    specials = tuple(tokenizer.all_special_tokens)
    lines = [{"text": text, "ids": tokenizer.encode(text)} for text in mixed_lines(100, specials)]
    chats = [
        {**given, "text": tokenizer.apply_chat_template(**_arguments(given), tokenize=False)}
        for given in conversations(10)
    ]
    return {"lines": lines, "chats": chats}


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    return {"conversation": given["messages"], "tools": given["tools"]} | {
        "add_generation_prompt": True
    }


def sliced(checkpoint: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the config and the weights of a slice of the model."""
    whole = load_file(checkpoint / "model.safetensors")
    weights = {
        "model.embed_tokens.weight": whole["model.embed_tokens.weight"][:VOCABULARY],
        "model.norm.weight": whole["model.norm.weight"],
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns) in MATRICES.items():
            weights[f"{prefix}{name}.weight"] = whole[f"{prefix}{name}.weight"][rows, columns]
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = whole[f"{prefix}{name}.weight"]
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config |= {
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
    }
    return config, {name: weight.contiguous() for name, weight in weights.items()}


def captured_logits(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return token ids and float32 logits [tokens, vocabulary] of the slice."""
    model = LlamaForCausalLM(LlamaConfig(**config)).float().eval()
    model.load_state_dict({name: weight.float() for name, weight in weights.items()}, strict=False)
    model.tie_weights()
    token_ids = [17 + (97 * i + 5 * i * i) % (VOCABULARY - 17) for i in range(TOKENS)]
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids])).logits[0]
    return {"ids": token_ids, "logits": [[round(x, 4) for x in row] for row in logits.tolist()]}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_packed(path: Path, data: bytes) -> None:
    path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    capture(Path(sys.argv[1]))
