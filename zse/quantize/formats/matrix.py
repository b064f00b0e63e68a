"""What a format of quantized checkpoints is: some tensors stand for a matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from zse.errors import CheckpointError, UnsupportedModelError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from zse.models.weights import Packing
    from zse.quantize.place import TensorReader
    from zse.quantize.safetensors_file import StoredTensor


@record
class Part:
    """One of the tensors that stand for a matrix."""

    file: TensorReader
    tensor: StoredTensor

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows, all by default, in the stored dtype."""
        return self.file.read_rows(
            self.tensor, start, self.tensor.num_rows if stop is None else stop
        )

    def expect(self, shapes: tuple[tuple[int, ...], ...], *dtypes: str) -> None:
        """Refuse a tensor of another shape or dtype.

        Raises:
            CheckpointError: It has none of the shapes.
            UnsupportedModelError: It has none of the dtypes.
        """
        found = self.tensor
        if found.shape not in shapes:
            raise CheckpointError(
                f"tensor {found.name} has shape {list(found.shape)}; quantization_config and the "
                f"tensors beside it say {' or '.join(str(list(shape)) for shape in shapes)}",
                hint="Check that config.json belongs to this checkpoint.",
            )
        if found.dtype not in dtypes:
            raise UnsupportedModelError(
                f"tensor {found.name} has dtype {found.dtype}; expected {' or '.join(dtypes)}",
                hint="Convert the checkpoint that was not quantized.",
            )


class Matrix(Protocol):
    """A matrix [N, K]. Reads are safe from several threads."""

    @property
    def shape(self) -> tuple[int, int]:
        """N and K, as Hugging Face has the matrix that was not quantized."""
        ...

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return rows as float32."""
        ...


class KeptMatrix(ABC):
    """A matrix whose codes a scheme of ours may hold."""

    @property
    @abstractmethod
    def packing(self) -> Packing | None:
        """The scheme that holds the same codes; None: they are widened."""

    @abstractmethod
    def read_packed(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return the parts of rows, as a file has them, where there is a packing.

        Raises:
            ConversionError: A scale is above the range of the file's.
        """


class MatrixForm(Protocol):
    """Which tensors stand for a matrix, and what they mean."""

    required: tuple[str, ...]
    """How the names of the tensors end that stand for a matrix."""
    optional: tuple[str, ...]
    """Of those that may be beside them."""

    def matrix(self, parts: Mapping[str, Part]) -> Matrix:
        """Return the matrix that some tensors stand for, by how their names end.

        Raises:
            CheckpointError: Their shapes or numbers do not fit together.
            UnsupportedModelError: A dtype or a group size is not known.
        """
        ...


class WeightFormat(Protocol):
    """How the matrices of a checkpoint are stored: in one form, or in several."""

    title: str
    """For people."""
    ignored: tuple[str, ...]
    """How the names of tensors end that say nothing of weights."""
    nearest: str
    """The scheme of ours with about as many bits: for what cannot be kept."""

    def form_of(self, tensor: StoredTensor) -> MatrixForm | None:
        """Return the form whose first required tensor this is; None: it is something else."""
        ...


def refuse_unless(config: Mapping[str, Any], name: str, *accepted: object) -> None:
    """Refuse a value of ``quantization_config`` that nothing here reads.

    Raises:
        UnsupportedModelError: The value is there and none of those.
    """
    if (found := config.get(name)) is not None and found not in accepted:
        raise UnsupportedModelError(
            f"quantization_config: {name} is {str(found)[:100]!r}; expected "
            + " or ".join(map(str, accepted)),
            hint="Convert the checkpoint that was not quantized.",
        )


def whole_number(name: str, value: object, *accepted: int) -> int:
    """Return a number of ``quantization_config`` that must be there.

    Raises:
        UnsupportedModelError: It is none, or not one of those accepted.
    """
    if type(value) is not int or (accepted and value not in accepted):
        words = " or ".join(map(str, accepted)) or "a whole number"
        raise UnsupportedModelError(
            f"quantization_config: {name} is {str(value)[:100]!r}; expected {words}",
            hint="Convert the checkpoint that was not quantized.",
        )
    return value
