"""Load a checkpoint with transformers and bitsandbytes NF4, generate, and say so line by line.

python scripts/bench/peers/hf_bnb_child.py FOLDER
"""

from __future__ import annotations

import json
import sys
import time

PROMPT_TOKENS = 32
DECODE_TOKENS = 128


def main(folder: str) -> None:
    """Print ``imported``, ``loaded``, ``first_token``, then ``figures`` and a JSON object."""
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    print("imported", flush=True)
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=quantization, device_map={"": 0}, dtype=torch.bfloat16
    )
    torch.cuda.synchronize()
    print("loaded", flush=True)

    def generate(count: int) -> float:
        ids = torch.randint(300, 10000, (1, PROMPT_TOKENS), device="cuda")
        began = time.perf_counter()
        model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    generate(1)
    print("first_token", flush=True)
    generate(8)
    rates = [DECODE_TOKENS / (generate(1 + DECODE_TOKENS) - generate(1)) for _ in range(2)]
    figures = {
        "decode_tokens_per_second": max(rates),
        "gpu_bytes": torch.cuda.max_memory_reserved(),
    }
    print("figures", json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
