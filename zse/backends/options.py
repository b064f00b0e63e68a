"""What a backend is told when it is made: plain values, no tensors."""

from __future__ import annotations

from zse.records import record

DEFAULT_BLOCK_SIZE = 32
"""Tokens in a KV block where nobody says otherwise."""
KV_DTYPES = ("auto", "fp32", "bf16", "int8")


@record
class BackendOptions:
    """Sizes that the user chooses. 0 means: choose for me."""

    block_size: int = DEFAULT_BLOCK_SIZE
    """Tokens in a KV block."""
    num_blocks: int = 0
    kv_bytes: int = 0
    """Memory for the KV pool in bytes, used when ``num_blocks`` is 0."""
    kv_dtype: str = "auto"
    """Type of the cached keys and values; auto is fp32 on a CPU, which keeps the answers those of
    transformers in float32, and bf16 on a GPU. int8 is for GPUs."""
    max_context: int = 0
    """Longest sequence in tokens that will be asked for; 0 means what the model says."""
    threads: int = 0
    """CPU threads; 0 means one a core, within the container's quota."""
    vram_bytes: int = 0
    """GPU memory for everything; 0 means all that is free."""
    exact_activations: bool = False
    """Never round activations to 8 bits on a GPU."""
    kernels: str = ""
    """Path of the kernel pack; empty looks in the model file, the image and the cache."""
    max_batch_tokens: int = 2048
    """Most tokens in a step."""
    max_sequences: int = 64
    """Most sequences that run at once."""
