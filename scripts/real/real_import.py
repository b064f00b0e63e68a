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
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


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
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


if __name__ == "__main__":
    import_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
