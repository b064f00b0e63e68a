"""A ``.zse`` file layer by layer, as tensors of torch: pages come ahead, and go behind.

For a conversion, or an arithmetic of one's own, over a model larger than memory. Numbers are
dequantized, float32, in the shapes of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from zse.errors import UsageError
from zse.format import ZSEReader
from zse.stream.fit import layers_of
from zse.stream.placement import members

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import torch


class ZSEStreamLoader:
    """Use it in a ``with`` block.

    Args:
        path: The file.
        prefetch_layers: Layers whose pages are asked for ahead.
        device: Where tensors go.

    Raises:
        NotFoundError, FormatError: There is no such file, or it is no ``.zse`` file.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, prefetch_layers: int = 2, device: str = "cpu"
    ) -> None:
        if prefetch_layers < 0:
            raise UsageError(f"{prefetch_layers} layers ahead were asked for; expected 0 or more")
        self._reader = ZSEReader(path)
        self._header = self._reader.header.loaded()
        self._ahead = prefetch_layers
        self._device = device
        self._layers = layers_of(self._header)
        self._members = {
            group.name: [entry.name for entry in entries]
            for group, entries in members(self._header)
        }

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def layer_bytes(self, index: int) -> int:
        """Return the stored bytes of a layer."""
        return self._layers[index].length_bytes

    def load_layer(self, index: int) -> dict[str, torch.Tensor]:
        """Return a layer's tensors by their names in the file; its pages go again.

        Raises:
            UsageError: There is no such layer.
        """
        if not 0 <= index < len(self._layers):
            raise UsageError(f"layer {index} was asked for; the file has {len(self._layers)}")
        for following in self._layers[index : index + 1 + self._ahead]:
            self._reader.ask_ahead(following.name)
        tensors = self._load(self._layers[index].name)
        self._reader.release(self._layers[index].name)
        return tensors

    def layers(self) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        """Yield every layer, in order."""
        for index in range(len(self._layers)):
            yield index, self.load_layer(index)

    def load_rest(self) -> dict[str, torch.Tensor]:
        """Return what is no layer: the embedding, the last norm, the head."""
        named = {group.name for group in self._layers}
        found: dict[str, torch.Tensor] = {}
        for name in self._members:
            if name not in named:
                found |= self._load(name)
        return found

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, group: str) -> dict[str, torch.Tensor]:
        return {
            name: self._reader.tensor(name).to(self._device, copy=True)
            for name in self._members[group]
        }
