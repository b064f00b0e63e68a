"""The CPU backend: the operations in torch, on packed weights, in float32 arithmetic."""

from zse.backends.cpu.backend import CPUBackend

__all__ = ["CPUBackend"]
