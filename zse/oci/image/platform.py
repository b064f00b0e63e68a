"""The image of one platform: its layers, its config, its manifest, and what went into it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import NotFoundError
from zse.oci.debian.apt import find_mirrors
from zse.oci.debian.packages import SUITE_PYTHON, Archive
from zse.oci.image.base import (
    Base,
    base_from_layout,
    base_from_registry,
    check_can_carry,
    layer_from_rootfs,
    parse_base,
    suite_of,
)
from zse.oci.image.layers import LayerBuilder
from zse.oci.image.options import BuildOptions, BuiltPlatform, ModelMode
from zse.oci.image.python import ImagePython
from zse.oci.image.settings import image_annotations, image_facts, image_settings
from zse.oci.layout.layer import LIBZSTD_VERSION, PINNED_LIBZSTD_VERSION, Compression
from zse.oci.layout.manifest import (
    MEDIA_TYPE_CONFIG,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    ImageSettings,
    build_config,
    build_manifest,
    digest_of,
    hex_of,
)
from zse.oci.registry.client import open_registry
from zse.oci.registry.reference import parse_reference
from zse.oci.statements.materials import Material, base_material, model_material
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from zse.oci.image.layers import ModelLayer
    from zse.oci.layout.folder import ImageLayout
    from zse.oci.layout.layer import Layer, StageProgress
    from zse.oci.recipe import Recipe
    from zse.oci.registry.upload import Source


@record
class PlatformImage:
    """An image whose own blobs lie in a layout; those of its base are where the base is."""

    platform: str
    manifest: Descriptor
    base: Base
    layers: tuple[Layer, ...]
    blobs: tuple[Descriptor, ...]
    """Every blob that the manifest names."""
    sources: dict[str, Source]
    """Digest -> where the blob can be had."""
    materials: tuple[Material, ...]
    python: str
    """Release of the Python that compiled the byte code; empty when there is none."""
    warnings: tuple[str, ...]

    @property
    def summary(self) -> BuiltPlatform:
        """What is said of it when it is finished."""
        return BuiltPlatform(
            platform=self.platform,
            digest=self.manifest.digest,
            size_bytes=self.manifest.size_bytes + sum(blob.size_bytes for blob in self.blobs),
            layers=self.layers,
            python=self.python,
            warnings=self.warnings,
            model_size_bytes=sum(x.size_bytes for x in self.layers if x.comment == "model"),
        )


def build_platform(
    stack: ExitStack,
    recipe: Recipe,
    options: BuildOptions,
    layout: ImageLayout,
    model: ModelLayer | None,
    report: Callable[[str], None],
    progress: StageProgress,
) -> PlatformImage:
    """Build the image of the recipe's platform into a layout.

    Args:
        stack: Closes what the base's layers are fetched through.
        recipe: As it is for the platform.
        options: What to build.
        layout: Gets the blobs that are built.
        model: The model's layer, which all platforms share; None when none is baked in.
        report: Told what happens.
        progress: Told how far a layer is.

    Raises:
        ImageError: Any of its subclasses: a lock, wheel, package or base at fault.
    """
    archive = _archive(options, report)
    python = stack.enter_context(
        ImagePython(recipe, options.locks_of(recipe), archive, options.cache_dir)
    )
    builder = LayerBuilder(
        recipe=recipe, options=options, python=python, report=report, progress=progress
    )
    base, layers = _base(stack, builder, archive)
    is_fetched = options.model_mode is ModelMode.URL
    layers += builder.dependencies()
    if recipe.kernels.gpu:
        layers.append(builder.kernels(_packs(recipe, options)))
    layers.append(builder.code())
    for layer in layers:
        layout.add_file(builder.cache.path(layer), layer.digest)
    if model is not None:
        layers.append(model.layer)
    if model is not None or is_fetched:
        source = {"source": options.shown_model_url} if is_fetched else {}
        facts = {**options.model_facts, **source}
        builder.materials.append(model_material(model.sha256 if model else "", facts))
    for words in _warnings(builder):
        report(f"warning: {words}")
    said = image_facts(recipe, options, model, cpython=builder.python.version)
    settings = image_settings(recipe, options, said)
    return _assemble(settings, builder, layout, base, layers)


def _archive(options: BuildOptions, report: Callable[[str], None]) -> Callable[[], Archive]:
    """Return what opens the Debian mirror: only who needs packages asks where there is one."""
    return lambda: Archive(
        mirrors=find_mirrors(options.mirror), cache=options.downloads / "debian", report=report
    )


def _warnings(builder: LayerBuilder) -> tuple[str, ...]:
    """Say what makes the image worse than it could be, or its digest one of this machine's."""
    found = []
    if builder.python.reason:
        found.append(
            f"no byte code goes into the image, so it starts twice as slowly: "
            f"{builder.python.reason}"
        )
    is_zstd = builder.options.compression is Compression.ZSTD
    if is_zstd and LIBZSTD_VERSION != PINNED_LIBZSTD_VERSION:
        found.append(
            f"this machine's libzstd is {LIBZSTD_VERSION}: the digest differs from those that "
            f"{PINNED_LIBZSTD_VERSION} gives"
        )
    return tuple(found)


def _packs(recipe: Recipe, options: BuildOptions) -> dict[str, Path]:
    """Return the kernel packs of the recipe; one that is missing is not left out in silence."""
    missing = [name for name in recipe.kernels.gpu if name not in options.kernels]
    if missing:
        raise NotFoundError(
            f"the recipe {recipe.name} needs kernel packs for {', '.join(missing)}",
            hint="Name a folder of them with --kernels; `zse kernels build` makes them.",
        )
    return dict(options.kernels)


def _base(
    stack: ExitStack, builder: LayerBuilder, archive: Callable[[], Archive]
) -> tuple[Base, list[Layer]]:
    """Return the base, and the layers that were built for it."""
    recipe, options = builder.recipe, builder.options
    name = parse_base(options.base or recipe.base)
    if name.kind == "debian":
        suite = suite_of(name.value, recipe.debian.suite, python=recipe.python, known=SUITE_PYTHON)
        return Base(name=f"debian:{suite}"), [builder.debian(archive(), suite)]
    if name.kind == "rootfs":
        path = Path(name.value)
        layer = layer_from_rootfs(path, builder.cache.blobs, compression=options.compression)
        base = Base(name=f"rootfs:{path.name}", digest=layer.diff_id)
        builder.materials.append(base_material(base.name, hex_of(layer.diff_id)))
        return replace(base, digest=""), [layer]
    if name.kind == "oci":
        base = base_from_layout(name.value, platform=recipe.platform)
    else:
        reference = parse_reference(name.value)
        registry = stack.enter_context(open_registry(reference, options.auth_file))
        cache = options.downloads / "bases"
        base = base_from_registry(registry, platform=recipe.platform, cache=cache)
        if not reference.digest:
            builder.report(f"the base {base.name} is {base.digest}; a tag may move, a digest not")
    check_can_carry(base)
    builder.materials.append(base_material(base.name, hex_of(base.digest)))
    return base, []


def _assemble(
    settings: ImageSettings,
    builder: LayerBuilder,
    layout: ImageLayout,
    base: Base,
    layers: list[Layer],
) -> PlatformImage:
    """Write config and manifest into the layout."""
    recipe, options = builder.recipe, builder.options
    content = build_config(
        base.config, layers, settings, platform=recipe.platform, epoch_seconds=options.epoch_seconds
    )
    config = Descriptor(
        media_type=MEDIA_TYPE_CONFIG, digest=layout.add_bytes(content), size_bytes=len(content)
    )
    own = [
        Descriptor(media_type=x.media_type, digest=x.digest, size_bytes=x.size_bytes)
        for x in layers
    ]
    annotations = image_annotations(recipe, options, base, cpython=builder.python.version)
    document = build_manifest(config, [*base.layers, *own], annotations)
    layout.add_bytes(document)
    sources: dict[str, Source] = {d.digest: layout.source(d) for d in [*own, config]}
    for descriptor in base.layers:
        sources[descriptor.digest] = _in_base(base, descriptor)
    return PlatformImage(
        platform=recipe.platform,
        manifest=Descriptor(
            media_type=MEDIA_TYPE_MANIFEST,
            digest=digest_of(document),
            size_bytes=len(document),
            platform=recipe.platform,
        ),
        base=base,
        layers=tuple(layers),
        blobs=(*base.layers, *own, config),
        sources=sources,
        materials=tuple(builder.materials),
        python=builder.python.version,
        warnings=_warnings(builder),
    )


def _in_base(base: Base, descriptor: Descriptor) -> Source:
    def fetch() -> Path:
        if base.fetch is None:
            raise NotFoundError(f"the base {base.name} cannot give its layer {descriptor.digest}")
        return base.fetch(descriptor)

    return fetch
