"""The torch backend: the operations in torch, on packed weights, in float32 arithmetic.

It is what tests hold the others against, and computes numbers that those have no kernels for.
"""

from zse.settings import prepare_for_torch

prepare_for_torch()  # whoever gets here first imports torch next

from zse.backends.torch.backend import TorchBackend  # noqa: E402

__all__ = ["TorchBackend"]
