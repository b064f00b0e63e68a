"""The image of one platform: its layers, its config, its manifest, and what went into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import NotFoundError
from zse.oci.debian.apt import find_mirrors
from zse.oci.debian.packages import Archive
from zse.oci.image.base import Base, layer_from_rootfs, open_base, parse_base, suite_of
from zse.oci.image.layers import LayerBuilder
from zse.oci.image.options import Build, BuildOptions, BuiltPlatform, ModelMode
from zse.oci.image.python import ImagePython
from zse.oci.image.settings import image_annotations, image_settings
from zse.oci.layout.layer import LIBZSTD_VERSION, PINNED_LIBZSTD_VERSION, Compression
from zse.oci.layout.manifest import (
    MEDIA_TYPE_CONFIG,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    build_config,
    build_manifest,
    hex_of,
)
from zse.oci.statements.materials import Material, base_material, model_material
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.oci.image.layers import ModelLayer
    from zse.oci.layout.layer import Layer
    from zse.oci.recipe import Recipe


@record
class PlatformImage:
    """An image whose own blobs lie in a layout; those of its base are where the base is."""

    summary: BuiltPlatform
    manifest: Descriptor
    base: Base
    own: tuple[Descriptor, ...]
    """Layers and config that the manifest names beside the layers of the base."""
    materials: tuple[Material, ...]


def build_platform(build: Build, model: ModelLayer | None) -> PlatformImage:
    """Build the image of the recipe's platform into a layout, around the model, if one is baked in.

    Raises:
        ImageError: Any of its subclasses: a lock, wheel, package or base at fault.
    """
    recipe, options = build.recipe, build.options
    archive = _archive(build)
    python = ImagePython(build, archive)
    builder = LayerBuilder(build=build, python=python)
    base, layers = _base(builder, archive)
    layers += builder.dependencies()
    if recipe.kernels.gpu:
        layers.append(builder.kernels(_packs(recipe, options)))
    layers.append(builder.code())
    for layer in layers:
        build.layout.add_file(builder.cache.path(layer), layer.digest)
    if model is not None:
        layers.append(model.layer)
    is_fetched = options.model_mode is ModelMode.URL
    if model is not None or is_fetched:
        source = {"source": options.shown_model_url} if is_fetched else {}
        facts = {**options.model_facts, **source}
        builder.materials.append(model_material(model.sha256 if model else "", facts))
    return _assemble(builder, base, layers, model)


def _archive(build: Build) -> Callable[[], Archive]:
    """Return what opens the Debian mirror: only who needs packages asks where there is one."""
    mirror, cache = build.options.mirror, build.options.downloads / "debian"
    return lambda: Archive(mirrors=find_mirrors(mirror), cache=cache, report=build.report)


def _packs(recipe: Recipe, options: BuildOptions) -> dict[str, Path]:
    """Return the kernel packs of the recipe; one that is missing is not left out in silence."""
    missing = [name for name in recipe.kernels.gpu if name not in options.kernels]
    if missing:
        raise NotFoundError(
            f"the recipe {recipe.name} needs kernel packs for {', '.join(missing)}",
            hint="Name a folder of them with --kernels; `zse kernels build` makes them.",
        )
    return dict(options.kernels)


def _base(builder: LayerBuilder, archive: Callable[[], Archive]) -> tuple[Base, list[Layer]]:
    """Return the base, and the layers that were built for it."""
    build = builder.build
    recipe, options = build.recipe, build.options
    name = parse_base(options.base or recipe.base)
    if name.kind == "debian":
        suite = suite_of(name.value, recipe.debian.suite, python=recipe.python)
        return Base(name=f"debian:{suite}"), [builder.debian(archive(), suite)]
    if name.kind == "rootfs":
        path = Path(name.value)
        layer = layer_from_rootfs(path, builder.cache.blobs, compression=options.compression)
        base = Base(name=f"rootfs:{path.name}")
        builder.materials.append(base_material(base.name, hex_of(layer.diff_id)))
        return base, [layer]
    base = open_base(name, recipe.platform, options, build.stack)
    if base.repository[0] and "@" not in name.value:
        build.report(f"the base {base.name} is {base.digest}; a tag may move, a digest not")
    builder.materials.append(base_material(base.name, hex_of(base.digest)))
    return base, []


def _assemble(
    builder: LayerBuilder, base: Base, layers: list[Layer], model: ModelLayer | None
) -> PlatformImage:
    build = builder.build
    platform, epoch_seconds = build.recipe.platform, build.options.epoch_seconds
    warnings = tuple(_warnings(builder))
    for words in warnings:
        build.report(f"warning: {words}")
    settings = image_settings(builder, model)
    content = build_config(
        base.config, layers, settings, platform=platform, epoch_seconds=epoch_seconds
    )
    config = build.layout.add(MEDIA_TYPE_CONFIG, content)
    packed = [Descriptor.bare(layer) for layer in layers]
    annotations = image_annotations(builder, base)
    document = build_manifest(config, [*base.layers, *packed], annotations)
    manifest = build.layout.add(MEDIA_TYPE_MANIFEST, document, platform=platform)
    summary = BuiltPlatform(
        platform=platform,
        digest=manifest.digest,
        size_bytes=sum(blob.size_bytes for blob in (manifest, *base.layers, *packed, config)),
        layers=tuple(layers),
        python=builder.python.version,
        warnings=warnings,
        model_size_bytes=model.layer.size_bytes if model else 0,
    )
    own, materials = (*packed, config), tuple(builder.materials)
    return PlatformImage(
        summary=summary, manifest=manifest, base=base, own=own, materials=materials
    )


def _warnings(builder: LayerBuilder) -> Iterator[str]:
    """Say what makes the image worse than it could be, or its digest one of this machine's."""
    if builder.python.reason:
        yield (
            f"no byte code goes into the image, so it starts twice as slowly: "
            f"{builder.python.reason}"
        )
    is_zstd = builder.build.options.compression is Compression.ZSTD
    if is_zstd and LIBZSTD_VERSION != PINNED_LIBZSTD_VERSION:
        yield (
            f"this machine's libzstd is {LIBZSTD_VERSION}: the digest differs from those that "
            f"{PINNED_LIBZSTD_VERSION} gives"
        )
