"""What a backend is told when it is made: plain values, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


class ModelShape(Protocol):
    """The numbers of a model that the operations need. ``ModelConfig`` has them."""

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""

    @property
    def num_heads(self) -> int:
        """Query heads."""

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads; divides the query heads."""

    @property
    def head_dim(self) -> int:
        """Width of one head."""

    @property
    def rms_norm_eps(self) -> float:
        """Added to the mean square before the root."""

    @property
    def max_position(self) -> int:
        """Longest sequence in tokens."""


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """Sizes that the user chooses. 0 means: choose for me."""

    inverse_frequencies: tuple[float, ...]
    """head_dim / 2 rotary frequencies, radians per token."""
    rope_factor: float = 1.0
    """Multiplies the rotary cosines and sines."""
    block_size: int = 32
    """Tokens in a KV block."""
    num_blocks: int = 0
    kv_bytes: int = 0
    """Memory for the KV pool in bytes, used when ``num_blocks`` is 0."""
    kv_dtype: Literal["fp32", "bf16"] = "fp32"
    """fp32 keeps the answers those of transformers in float32; bf16 halves the pool."""
    max_context: int = 0
    """Longest sequence in tokens that will be asked for; 0 means what the model says."""
    threads: int = 0
    """CPU threads; 0 means all physical cores."""
