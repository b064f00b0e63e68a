"""Linear layers for a transformers model, made of the parts that the file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from zse.quantize.stored import StoredMatrix
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.quantize.huggingface.kernels import TorchLinearKernels


LayerMaker: TypeAlias = "Callable[[StoredMatrix, torch.Tensor | None], torch.nn.Module]"
"""Makes what stands where the transformers model has a linear layer, of a matrix and a float32
bias [N]; nothing of it stays in the file."""


@record
class Place:
    """Where a model is, and the type of its plain tensors."""

    device: torch.device
    dtype: torch.dtype

    def frozen(self, values: torch.Tensor) -> torch.nn.Parameter:
        """Return values as a parameter that is not trained; never a view of the file."""
        copied = values.to(self.device, self.dtype, copy=True)
        return torch.nn.Parameter(copied, requires_grad=False)

    def plain_layer(self, weight: StoredMatrix, bias: torch.Tensor | None) -> torch.nn.Module:
        """Return an ordinary ``torch.nn.Linear``, dequantized once."""
        rows, columns = weight.entry.shape
        layer = torch.nn.Linear(columns, rows, bias=bias is not None, device="meta")
        # Packed weights travel faster than dense ones, and a GPU unpacks them faster.
        layer.weight = self.frozen(weight.on(self.device).values())
        if bias is not None:
            layer.bias = self.frozen(bias)
        return layer


class ZSELinear(torch.nn.Linear):
    """A linear layer over packed weights, which are not trained.

    On a GPU our kernels compute it; without them the weights are dequantized for each call, which
    is slow and takes the memory of one dense layer for that moment. Gradients reach the inputs, so
    that adapters can be trained around it (``peft.get_peft_model``): weights are dequantized once
    more for that, and none stays dense in between.

    Args:
        weight: The matrix; its parts are copied to the device.
        bias: Float32 [N].
        kernels: Multiply on the GPU what they know; None for torch.
    """

    def __init__(
        self,
        weight: StoredMatrix,
        bias: torch.Tensor | None,
        *,
        device: torch.device,
        kernels: TorchLinearKernels | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)  # torch's own layer would make a dense weight
        self._entry = weight.entry
        self.use(kernels, weight)
        self._roles = tuple(weight.parts)
        self.out_features, self.in_features = weight.entry.shape
        for role, part in weight.parts.items():
            self.register_buffer(role, part.to(device, copy=True).contiguous())
        self.register_buffer("bias", None if bias is None else bias.to(device, copy=True))

    def use(self, kernels: TorchLinearKernels | None, weight: StoredMatrix | None = None) -> None:
        """Multiply by some kernels from now on, where they know the matrix; None: by torch."""
        usable = kernels is not None and kernels.supports(weight or self.stored())
        self._kernels = kernels if usable else None

    def stored(self) -> StoredMatrix:
        """Return the packed weights where they are now."""
        return StoredMatrix(
            entry=self._entry, parts={role: self.get_buffer(role) for role in self._roles}
        )

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """What is stored: the numbers of a plain scheme, else their codes, as in bitsandbytes."""
        return self.get_buffer(self._roles[0])

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [M, K] @ weight^T, without gradients."""
        if self._kernels is not None and rows.device.type == "cuda":
            return self._kernels.multiply(self.stored(), rows)
        return torch.mm(rows, self.stored().values().to(rows.dtype).t())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs [..., K] @ weight^T + bias, of the inputs' dtype."""
        rows = inputs.reshape(-1, self.in_features)
        outputs: torch.Tensor = _PackedProduct.apply(rows, self)  # type: ignore[no-untyped-call]
        bias = self._buffers["bias"]
        if bias is not None:
            outputs = outputs + bias.to(outputs.dtype)
        return outputs.to(inputs.dtype).reshape(*inputs.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        grouped = f", group_size={self._entry.group_size}" if self._entry.group_size else ""
        return f"{self.in_features}, {self.out_features}, scheme={self._entry.scheme}{grouped}"


class _PackedProduct(torch.autograd.Function):
    """The product with packed weights; what is kept for its gradient is the layer itself."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, layer: ZSELinear) -> torch.Tensor:
        context.layer, context.dtype = layer, rows.dtype
        return layer.product(rows)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        weights = context.layer.stored().values().to(gradient.dtype)
        return torch.mm(gradient, weights).to(context.dtype), None
