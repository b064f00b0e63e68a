"""The layers of an image, from what changes least to what changes most.

base | large wheels, one layer each | small wheels | kernel packs | zse itself | model. Separate
layers are pulled in parallel, and a new version of zse sends a few hundred kilobytes. The model is
stored plain: quantized weights do not compress, and inflating them would be the slowest part of a
pull.
"""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from typing import TYPE_CHECKING, BinaryIO, cast

from zse.oci.debian.packages import Archive, debian_entries, read_debian_lock, update_debian_lock
from zse.oci.image.code import APPLICATION, code_entries, entries_digest
from zse.oci.layout.cache import LayerCache
from zse.oci.layout.layer import (
    LIBRARY_VERSIONS,
    Compression,
    Layer,
    StageProgress,
    no_progress,
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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from hashlib import _Hash as Hash
    from pathlib import Path

    from zse.oci.image.options import BuildOptions
    from zse.oci.image.python import ImagePython
    from zse.oci.layout.tar import Entry
    from zse.oci.recipe import Recipe

MODEL_PATH = "models/model.zse"
PACKS = f"{APPLICATION}/zse/kernels/packs"
OWN_LAYER_BYTES = 50 << 20
"""A wheel from this size on gets a layer of its own."""
_PAGE_BYTES = 4096
_CONNECTIONS = 4


@record
class ModelLayer:
    """The layer that holds the model, and the hash of the file in it."""

    layer: Layer
    sha256: str


def model_layer(
    model: Path, blobs: Path, *, mtime: int, progress: StageProgress = no_progress
) -> ModelLayer:
    """Build the model's layer, straight into the folder it is wanted in; the file is read once."""
    total = hashlib.sha256()
    plain = file_of_path(MODEL_PATH, model)
    hashed = replace(plain, open=lambda: cast("BinaryIO", _HashedFile(model, total)))
    layer = write_layer(
        [directory("models"), hashed],
        blobs,
        compression=Compression.NONE,
        mtime=mtime,
        align_bytes=_PAGE_BYTES,
        comment="model",
        progress=progress,
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
    """Builds layers of one recipe.

    Attributes:
        recipe: What goes in.
        options: How it is built.
        python: Compiles the byte code.
        report: Told what happens.
        progress: Told how far a layer is.
        materials: Grows by what goes into the layers.
    """

    recipe: Recipe
    options: BuildOptions
    python: ImagePython
    report: Callable[[str], None]
    progress: StageProgress
    materials: list[Material] = field(default_factory=list)

    @property
    def cache(self) -> LayerCache:
        return LayerCache(self.options.cache_dir / "layers", is_enabled=self.options.is_cached)

    @property
    def locks(self) -> Path:
        return self.options.locks_of(self.recipe)

    def debian(self, archive: Archive, suite: str) -> Layer:
        recipe = replace(self.recipe.debian, suite=suite)
        if self.options.is_lock_updated:
            self.report(f"resolving Debian packages of {suite} for {recipe.architecture}")
            packages = update_debian_lock(archive, recipe, self.locks)
        else:
            packages = read_debian_lock(self.locks, recipe)
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            files = list(pool.map(archive.fetch, packages))
        for package, file in zip(packages, files, strict=True):
            self.materials.append(
                debian_material(package, file, suite=suite, architecture=recipe.architecture)
            )
        inputs = ["debian", [package.sha256 for package in packages], list(recipe.prune)]
        return self._layer(
            f"base: {len(packages)} Debian packages",
            inputs,
            lambda: debian_entries(archive, packages, recipe),
        )

    def dependencies(self) -> list[Layer]:
        """Build the layers that hold Python packages."""
        if self.options.is_lock_updated:
            self.report(f"resolving wheels for {self.recipe.platform}")
            wheels = update_wheel_lock(
                self.recipe, self.locks, self.options.downloads / "wheels", self.options.secrets
            )
        else:
            wheels = read_wheel_lock(self.locks, self.recipe)
        files = fetch_wheels(
            self.recipe,
            wheels,
            self.options.downloads / "wheels",
            self.options.secrets,
            self.report,
        )
        groups: dict[str, list[tuple[Path, str]]] = {}
        for wheel, file in zip(wheels, files, strict=True):
            is_large = file.stat().st_size >= OWN_LAYER_BYTES
            groups.setdefault(wheel.name if is_large else "", []).append((file, wheel.sha256))
            self.materials.append(wheel_material(wheel, file))
        # Named groups first: they change least often.
        return [self._wheels(name, groups[name]) for name in sorted(groups, reverse=True)]

    def code(self) -> Layer:
        entries = list(code_entries(self.recipe))
        digest = entries_digest(entries)
        self.materials.append(code_material(digest))
        return self._layer("zse", ["code", digest], lambda: entries)

    def kernels(self, packs: Mapping[str, Path]) -> Layer:
        """Build the layer that holds kernel packs, where the server looks for them.

        Args:
            packs: Architecture -> pack, whose bytes decide the layer's.
        """
        entries = [file_of_path(f"{PACKS}/{name}.zkp", path) for name, path in packs.items()]
        for name, path in sorted(packs.items()):
            self.materials.append(kernels_material(name, sha256_of(path)))
        title = f"kernels for {', '.join(sorted(packs))}"
        return self._layer(title, ["kernels", entries_digest(entries)], lambda: entries)

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
        library = LIBRARY_VERSIONS[self.options.compression]
        key = [
            inputs,
            title,
            self.options.compression,
            library,
            self.options.epoch_seconds,
            self.python.version,
        ]

        def build(blobs: Path) -> Layer:
            files = entries()
            if self.python.version:
                compiler = self.python.compiler()
                files = with_byte_code(
                    files,
                    compiler,
                    image_python=self.recipe.python,
                    progress=lambda *sizes: self.progress(f"{title}, byte code", *sizes),
                )
            return write_layer(
                files,
                blobs,
                compression=self.options.compression,
                mtime=self.options.epoch_seconds,
                comment=title,
                progress=self.progress,
            )

        layer, was_built = self.cache.layer(key, build)
        state = "cached" if was_built else "built"
        self.report(f"{title}: {layer.size_bytes / 1e6:.1f} MB ({state})")
        return layer
