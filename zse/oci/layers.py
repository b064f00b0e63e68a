"""The layers of an image, from what changes least to what changes most.

base | large wheels, one layer each | small wheels | zse itself | model. Separate layers are pulled
in parallel, and a new version of zse sends a few hundred kilobytes. The model is stored plain:
quantized weights do not compress, and inflating them would be the slowest part of a pull.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zse.oci.code import code_entries, entries_digest
from zse.oci.debian import LOCK_NAME as DEBIAN_LOCK
from zse.oci.debian import (
    Archive,
    debian_entries,
    read_debian_lock,
    update_debian_lock,
)
from zse.oci.layer import LIBZSTD_VERSION, Compression, Layer, write_layer
from zse.oci.pyc import HOST_PYTHON, host_can_compile, with_byte_code
from zse.oci.tar import directory, file_of_path
from zse.oci.wheel import SITE_PACKAGES, wheel_entries
from zse.oci.wheels import (
    fetch_wheels,
    read_wheel_lock,
    update_wheel_lock,
    wheels_for_storage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from zse.oci.cache import LayerCache
    from zse.oci.recipe import Recipe
    from zse.oci.tar import Entry

MODEL_PATH = "models/model.zse"
OWN_LAYER_BYTES = 50 << 20
"""A wheel from this size on gets a layer of its own."""
_PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class LayerBuilder:
    """Builds layers of one recipe.

    Attributes:
        recipe: What goes in.
        locks: Folder of the lock files.
        cache: Layers built before.
        downloads: Folder for wheels and packages.
        compression: How layers are stored.
        mtime: Time stamp of every file, seconds since 1970.
        is_update: Resolve again and write the locks first.
        report: Told what happens.
    """

    recipe: Recipe
    locks: Path
    cache: LayerCache
    downloads: Path
    compression: Compression
    mtime: int
    is_update: bool
    report: Callable[[str], None]

    def debian(self, archive: Archive, suite: str) -> Layer:
        """Build the base layer from Debian packages."""
        recipe = replace(self.recipe.debian, suite=suite)
        if self.is_update:
            self.report(f"resolving Debian packages of {suite} into {DEBIAN_LOCK}")
            packages = update_debian_lock(archive, recipe, self.locks)
        else:
            packages = read_debian_lock(self.locks, recipe)
        inputs = ["debian", [package.sha256 for package in packages], list(recipe.prune)]
        return self._layer(
            f"base: {len(packages)} Debian packages",
            inputs,
            lambda: debian_entries(archive, packages, recipe),
        )

    def dependencies(self, *, with_storage: bool) -> list[Layer]:
        """Build the layers that hold Python packages; those for object storage when asked for."""
        if self.is_update:
            self.report("resolving wheels into wheels.lock")
            wheels = update_wheel_lock(self.recipe, self.locks, self.downloads / "wheels")
        else:
            wheels = read_wheel_lock(self.locks, self.recipe)
        storage = wheels_for_storage(self.recipe, wheels)
        if not with_storage:
            wheels = [wheel for wheel in wheels if wheel not in storage]
        files = fetch_wheels(self.recipe, wheels, self.downloads / "wheels")
        groups: dict[str, list[tuple[Path, str]]] = {}
        for wheel, file in zip(wheels, files, strict=True):
            is_large = file.stat().st_size >= OWN_LAYER_BYTES
            group = "object storage" if wheel in storage else wheel.name if is_large else ""
            groups.setdefault(group, []).append((file, wheel.sha256))
        # Named groups first: they change least often.
        return [self._wheels(name, groups[name]) for name in sorted(groups, reverse=True)]

    def code(self) -> Layer:
        """Build the layer that holds zse."""
        entries = list(code_entries(self.recipe))
        return self._layer("zse", ["code", entries_digest(entries)], lambda: entries)

    def model(self, model: Path, blobs: Path) -> Layer:
        """Build the layer that holds the model, straight into the folder it is wanted in."""
        entries = [directory("models"), file_of_path(MODEL_PATH, model)]
        return write_layer(
            entries,
            blobs,
            compression=Compression.NONE,
            mtime=self.mtime,
            align_bytes=_PAGE_BYTES,
            comment="model",
        )

    @property
    def byte_code_version(self) -> str:
        """The interpreter whose byte code goes in; empty when none does."""
        return HOST_PYTHON if host_can_compile(self.recipe.python) else ""

    def _wheels(self, name: str, files: list[tuple[Path, str]]) -> Layer:
        def entries() -> Iterator[Entry]:
            for file, _ in files:
                yield from wheel_entries(file, prune=self.recipe.wheels.prune)

        hashes = [digest for _, digest in files]
        inputs = ["wheels", SITE_PACKAGES, hashes, list(self.recipe.wheels.prune)]
        return self._layer(name or f"{len(files)} Python packages", inputs, entries)

    def _layer(
        self, title: str, inputs: Sequence[object], entries: Callable[[], Iterable[Entry]]
    ) -> Layer:
        libzstd = LIBZSTD_VERSION if self.compression is Compression.ZSTD else ""
        key = [inputs, title, self.compression, libzstd, self.mtime, self.byte_code_version]

        def build(blobs: Path) -> Layer:
            files = entries()
            if self.byte_code_version:
                files = with_byte_code(files, image_python=self.recipe.python)
            return write_layer(
                files, blobs, compression=self.compression, mtime=self.mtime, comment=title
            )

        layer, was_built = self.cache.layer(key, build)
        state = "cached" if was_built else "built"
        self.report(f"{title}: {layer.size_bytes / 1e6:.1f} MB ({state})")
        return layer
