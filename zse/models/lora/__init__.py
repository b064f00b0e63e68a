"""LoRA: adapters in PEFT's form, read, checked and put in the terms of a model's own matrices."""
