"""The layers of an image, from what changes least to what changes most.

base | large wheels, one layer each | small wheels | kernel packs | zse itself | model. Separate
layers are pulled in parallel, and a new version of zse sends a few hundred kilobytes. The model is
stored plain: quantized weights do not compress, and inflating them would be the slowest part of a
pull.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO, cast

from zse.oci.debian.packages import Archive, debian_entries, read_debian_lock, update_debian_lock
from zse.oci.image.code import APPLICATION, code_entries, entries_digest
from zse.oci.layout.cache import LayerCache
from zse.oci.layout.layer import (
    LIBRARY_VERSIONS,
    PACK_ZSTD_LEVEL,
    ZSTD_LEVEL,
    Compression,
    Layer,
    write_layer,
)
from zse.oci.layout.tar import directory, file_of_path
from zse.oci.python.pyc import with_byte_code
from zse.oci.python.wheel import SITE_PACKAGES, wheel_entries
from zse.oci.python.wheels import fetch_wheels, read_wheel_lock, sha256_of, update_wheel_lock
from zse.oci.statements.materials import (
    Material,
    code_material,
    debian_material,
    kernels_material,
    wheel_material,
)
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from hashlib import _Hash as Hash
    from pathlib import Path

    from zse.oci.image.options import Build
    from zse.oci.image.python import ImagePython
    from zse.oci.layout.tar import Entry

MODEL_PATH = "models/model.zse"
PACKS = f"{APPLICATION}/zse/kernels/packs"
OWN_LAYER_BYTES = 50 << 20
"""A wheel from this size on gets a layer of its own."""
_PAGE_BYTES = 4096


@record
class ModelLayer:
    """The layer that holds the model, and the hash of the file in it."""

    layer: Layer
    sha256: str


def model_layer(model: Path, build: Build) -> ModelLayer:
    """Build the model's layer, straight into the layout; the file is read once."""
    total = hashlib.sha256()
    plain = file_of_path(MODEL_PATH, model)
    hashed = replace(plain, open=lambda: cast("BinaryIO", _HashedFile(model, total)))
    layer = write_layer(
        [directory("models"), hashed],
        build.layout.blobs,
        compression=Compression.NONE,
        mtime=build.options.epoch_seconds,
        align_bytes=_PAGE_BYTES,
        comment="model",
        progress=build.progress,
    )
    return ModelLayer(layer=layer, sha256=total.hexdigest())


class _HashedFile(io.FileIO):
    """A file that is hashed while it is read from its start to its end."""

    def __init__(self, path: Path, total: Hash) -> None:
        super().__init__(path, "rb")
        self._total = total

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._total.update(data)
        return data


@record
class LayerBuilder:
    """Builds the layers of one platform."""

    build: Build
    python: ImagePython
    """Compiles the byte code."""
    materials: list[Material] = field(default_factory=list)
    """Grows by what goes into the layers."""

    @property
    def cache(self) -> LayerCache:
        options = self.build.options
        return LayerCache(options.cache_dir / "layers", is_enabled=options.is_cached)

    def debian(self, archive: Archive, suite: str) -> Layer:
        build = self.build
        recipe, locks = replace(build.recipe.debian, suite=suite), build.locks
        if build.options.is_lock_updated:
            build.report(f"resolving Debian packages of {suite} for {recipe.architecture}")
            packages = update_debian_lock(archive, recipe, locks)
        else:
            packages = read_debian_lock(locks, recipe)
        files = archive.fetch_all(packages)
        for package, file in zip(packages, files, strict=True):
            self.materials.append(
                debian_material(package, file, suite=suite, architecture=recipe.architecture)
            )
        title = f"base: {len(packages)} Debian packages"
        inputs = ["debian", [package.sha256 for package in packages], list(recipe.prune)]
        return self._layer(title, inputs, lambda: debian_entries(archive, packages, recipe))

    def dependencies(self) -> list[Layer]:
        recipe, options, report = self.build.recipe, self.build.options, self.build.report
        cache = options.downloads / "wheels"
        if options.is_lock_updated:
            report(f"resolving wheels for {recipe.platform}")
            wheels = update_wheel_lock(recipe, self.build.locks, cache, options.secrets)
        else:
            wheels = read_wheel_lock(self.build.locks, recipe)
        files = fetch_wheels(recipe, wheels, cache, options.secrets, report)
        groups: dict[str, list[tuple[Path, str]]] = {}
        for wheel, file in zip(wheels, files, strict=True):
            is_large = file.stat().st_size >= OWN_LAYER_BYTES
            groups.setdefault(wheel.name if is_large else "", []).append((file, wheel.sha256))
            self.materials.append(wheel_material(wheel, file))
        # Named groups first: they change least often.
        return [self._wheels(name, groups[name]) for name in sorted(groups, reverse=True)]

    def code(self) -> Layer:
        entries = list(code_entries(self.build.recipe))
        digest = entries_digest(entries)
        self.materials.append(code_material(digest))
        return self._layer("zse", ["code", digest], lambda: entries)

    def kernels(self, packs: Mapping[str, Path]) -> Layer:
        """Build the layer of kernel packs, by architecture, where the server looks for them."""
        entries = [file_of_path(f"{PACKS}/{name}.zkp", path) for name, path in packs.items()]
        for name, path in sorted(packs.items()):
            self.materials.append(kernels_material(name, sha256_of(path)))
        title = f"kernels for {', '.join(sorted(packs))}"
        key = ["kernels", entries_digest(entries)]
        return self._layer(title, key, lambda: entries, zstd_level=PACK_ZSTD_LEVEL)

    def _wheels(self, name: str, files: list[tuple[Path, str]]) -> Layer:
        prune = self.build.recipe.wheels.prune
        inputs = ["wheels", SITE_PACKAGES, [digest for _, digest in files], list(prune)]
        return self._layer(
            name or f"{len(files)} Python packages",
            inputs,
            lambda: chain.from_iterable(wheel_entries(file, prune=prune) for file, _ in files),
        )

    def _layer(
        self,
        title: str,
        inputs: Sequence[object],
        entries: Callable[[], Iterable[Entry]],
        *,
        zstd_level: int = ZSTD_LEVEL,
    ) -> Layer:
        options, progress = self.build.options, self.build.progress
        compression, mtime = options.compression, options.epoch_seconds
        library = LIBRARY_VERSIONS[compression]
        key = [inputs, title, compression, library, mtime, self.python.version]

        def build(blobs: Path) -> Layer:
            files = entries()
            if self.python.version:
                files = with_byte_code(
                    files,
                    self.python.compiler(),
                    image_python=self.build.recipe.python,
                    progress=partial(progress, f"{title}, byte code"),
                )
            return write_layer(
                files,
                blobs,
                compression=compression,
                mtime=mtime,
                comment=title,
                progress=progress,
                zstd_level=zstd_level,
            )

        layer, was_built = self.cache.layer(key, build)
        state = "cached" if was_built else "built"
        self.build.report(f"{title}: {layer.size_bytes / 1e6:.1f} MB ({state})")
        return layer
