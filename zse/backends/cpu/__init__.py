"""The CPU backend: the operations in torch, on packed weights, in float32 arithmetic."""

from zse.settings import wait_briefly_in_openmp

wait_briefly_in_openmp()  # whoever gets here first imports torch next

from zse.backends.cpu.backend import CPUBackend  # noqa: E402

__all__ = ["CPUBackend"]
