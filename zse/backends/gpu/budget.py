"""What a device's memory is spoken for. Imported before the rest: see ``arrival``."""

from __future__ import annotations

from zse.errors import DeviceError
from zse.records import record
from zse.units import GIB

MARGIN_BYTES = 512 << 20
"""Left free for the driver, captured graphs and kernels' code."""

_REST_PART, _REST_BYTES = 16, 2 << 30


@record
class MemoryBudget:
    """What there is, and what is spoken for, in bytes."""

    free: int
    """Free on the device before anything of the model is there."""
    allowed: int
    """Total that the user allows; 0 is all."""
    weights: int
    scratch: int = 0
    """Scratch memory of the largest step."""
    states: int = 0
    """States of the sequences that run at once."""
    adapters: int = 0
    """Set aside for adapters."""
    kept: int = 0
    """Weights as prompts read them, which are taken when the first long one comes."""

    @property
    def for_cache(self) -> int:
        """What is left for the KV pool; negative when not even the weights fit."""
        limit = self.free - MARGIN_BYTES
        if self.allowed:
            limit = min(limit, self.allowed - MARGIN_BYTES)
        return limit - self.weights - self.scratch - self.states - self.adapters - self.kept

    @property
    def holds_weights(self) -> bool:
        """Whether weights leave room for the rest: a sixteenth of them, and at most 2 GiB."""
        return self.for_cache >= min(self.weights // _REST_PART, _REST_BYTES)

    def check(self, cache_bytes: int = 1) -> None:
        """Refuse, with a ``DeviceError``, what leaves fewer bytes than this to the cache."""
        if self.for_cache >= cache_bytes:
            return
        others = self.scratch + self.states + self.adapters + self.kept
        needed = self.weights + others + MARGIN_BYTES + cache_bytes
        allowed = f", {gib(self.allowed)} are allowed" if self.allowed else ""
        states = f"{gib(self.states)} states of sequences, " if self.states else ""
        states += f"{gib(self.adapters)} for adapters, " if self.adapters else ""
        states += f"{gib(self.kept)} of weights kept for prompts, " if self.kept else ""
        raise DeviceError(
            f"the model needs {gib(needed)} of GPU memory ({gib(self.weights)} weights, "
            f"{gib(self.scratch)} scratch, {states}{gib(MARGIN_BYTES)} for the driver, and a KV "
            "cache); "
            f"{gib(self.free)} are free{allowed}",
            hint="Use a larger GPU or a smaller quantization, allow more with --vram-gib, or let "
            "layers stream from a file of this machine (--stream auto).",
        )


def gib(length_bytes: int) -> str:
    return f"{length_bytes / GIB:.2f} GiB"
