"""What an image says of itself in its labels: which model, how it gets its weights, which device.

The builder writes them, `zse image inspect` shows them, and whoever is about to run the image reads
them: an image for CPUs is of no use on a machine with a GPU.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from zse.printable import printable
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "dev.zse."
NO_BYTE_CODE = "none"


@record
class ImageFacts:
    """What the labels say. Text is empty where an image does not say it, as a foreign one."""

    version: str = ""
    """Of zse, which built the image and runs in it."""
    recipe: str = ""
    device: str = ""
    """``cpu``, ``cuda`` or ``auto``."""
    kernels: tuple[str, ...] = ()
    """GPU architectures that the image carries kernels for: ``sm_90``."""
    weights: str = ""
    """``baked``: the model is in the image; ``volume``: it is mounted; ``url``: it is fetched."""
    model_name: str = ""
    model_revision: str = ""
    model_scheme: str = ""
    """How the weights are quantized: ``int4``."""
    model_sha256: str = ""
    """Of the .zse file, as ``sha256sum`` prints it; empty when the file is not in the image."""
    model_url: str = ""
    """Where a ``url`` image fetches its model, without the query."""
    byte_code: str = ""
    """Version of the Python that compiled the code in the image; ``none`` when none did."""

    @property
    def is_ours(self) -> bool:
        """Whether zse built the image, and says so."""
        return bool(self.recipe)

    def to_labels(self) -> dict[str, str]:
        words = {**asdict(self), "kernels": ",".join(self.kernels)}
        return {_label(field): text for field, text in words.items() if text}

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> ImageFacts:
        """Read labels, which anybody may have written; what they do not say stays empty."""
        found: dict[str, Any] = {
            field.name: printable(str(labels.get(_label(field.name), ""))) for field in fields(cls)
        }
        return cls(**found | {"kernels": tuple(filter(None, found["kernels"].split(",")))})


def _label(field: str) -> str:
    """Return the label of a field: ``dev.zse.model.name`` of ``model_name``."""
    return f"{_PREFIX}{field.replace('model_', 'model.').replace('_', '-')}"
