"""Layers that were built before, found again by what went into them.

A key is the hash of a layer's inputs (lock, recipe, compressor, versions), never of its output, so
an unchanged layer costs nothing the second time. What is found is byte for byte what a build gives.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from zse.oci.layout.layer import Layer
from zse.oci.layout.manifest import canonical_json, digest_of, hex_of
from zse.store.local import LocalWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IMAGE_FORMAT = "4"
"""Raised whenever the builder writes other bytes for the same inputs."""


class LayerCache:
    """Blobs of built layers, and an index from inputs to blobs, read only if enabled."""

    def __init__(self, folder: Path, *, is_enabled: bool = True) -> None:
        self.blobs = folder / "blobs"
        self._keys = folder / "keys"
        self._is_enabled = is_enabled

    def layer(self, inputs: object, build: Callable[[Path], Layer]) -> tuple[Layer, bool]:
        """Return the layer of these inputs, a JSON value, and whether it had been built before."""
        key = hex_of(digest_of(canonical_json([IMAGE_FORMAT, inputs])))
        note = self._keys / key
        if self._is_enabled and (known := self._read(note)) is not None:
            return known, True
        layer = build(self.blobs)
        with LocalWriter(note) as file:
            file.write(canonical_json(asdict(layer)))
        return layer, False

    def path(self, layer: Layer) -> Path:
        return self.blobs / hex_of(layer.digest)

    def _read(self, note: Path) -> Layer | None:
        """Return the noted layer if its blob is whole; a broken note is only a miss."""
        try:
            layer = Layer(**json.loads(note.read_bytes()))
            is_whole = self.path(layer).stat().st_size == layer.size_bytes
        except (OSError, ValueError, TypeError):
            return None
        return layer if is_whole else None
