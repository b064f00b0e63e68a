"""Make a checkpoint folder of a GGUF file, through ``transformers``.

    python scripts/real/real_import.py FILE.gguf FOLDER

Packed weights are dequantized and rounded to bfloat16, so the checkpoint is the model that the file
approximates, not the one that was published. ``scripts/real_models`` runs this in a process of its
own for each file: the memory goes back before the next one.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

DIGITS_ALONE = ("smollm",)
"""Vocabularies whose words end at every digit: transformers leaves this out of what it makes."""


def import_gguf(source: Path, target: Path) -> None:
    """Write ``target``, complete or not at all.

    Raises:
        ValueError: transformers knows no model of the architecture that the file names.
    """
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)  # the same memory under two names cannot be saved
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    for stale in ("quantization_config", "_name_or_path"):  # they are neither packed nor there
        config.pop(stale, None)
    config |= {"architectures": [type(model).__name__], "dtype": "bfloat16"}
    (partial / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    AutoTokenizer.from_pretrained(**where).save_pretrained(partial)
    restore_splitting(source, partial / "tokenizer.json")
    # What it makes of the folder has what it left out of the file, such as Qwen's normalizer.
    AutoTokenizer.from_pretrained(partial).save_pretrained(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def restore_splitting(source: Path, tokenizer_json: Path) -> None:
    """Split texts before merging as the file's word ``tokenizer.ggml.pre`` says."""
    field = GGUFReader(source).fields.get("tokenizer.ggml.pre")
    if field is None or field.contents() not in DIGITS_ALONE:
        return
    document = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    splits = [{"type": "Digits", "individual_digits": True}, document["pre_tokenizer"]]
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits}
    text = json.dumps(document, ensure_ascii=False, indent=2)
    tokenizer_json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    import_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
