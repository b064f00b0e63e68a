"""From a recipe, a model and a base to an image, and from there to a folder, a file or a registry.

Nothing runs in the image and nothing is unpacked to disk: layers are tar streams that this process
writes. The digest is a function of the inputs alone.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import zse
from zse.errors import NotFoundError, UsageError
from zse.oci.apt import find_mirrors
from zse.oci.base import (
    Base,
    base_from_layout,
    base_from_registry,
    layer_from_rootfs,
    parse_base,
    suite_of,
)
from zse.oci.cache import IMAGE_FORMAT, LayerCache
from zse.oci.credentials import find_credentials
from zse.oci.debian import SUITE_PYTHON, Archive
from zse.oci.image import (
    MEDIA_TYPE_CONFIG,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    ImageSettings,
    build_config,
    build_manifest,
    digest_of,
)
from zse.oci.layer import LIBZSTD_VERSION, Compression, Layer
from zse.oci.layers import MODEL_PATH, LayerBuilder
from zse.oci.layout import ImageLayout, write_archive
from zse.oci.reference import Reference, parse_reference
from zse.oci.registry import Registry
from zse.oci.upload import push_blobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.oci.recipe import Recipe
    from zse.oci.upload import Source


class ModelMode(StrEnum):
    """Where the running image finds its model."""

    BAKED = "baked"
    VOLUME = "volume"
    URL = "url"


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What to build and where it goes.

    Attributes:
        name: ``[HOST/]NAME[:TAG]``.
        model: The .zse file, for a baked model.
        model_mode: Where the running image finds its model.
        model_url: The model's address, when it is fetched at start.
        base: ``debian[:SUITE]``, ``oci:DIR``, ``rootfs:TAR`` or a reference; empty: the recipe's.
        output: ``oci:DIR`` or ``tar:FILE``; empty for none.
        is_pushed: Send the image to the registry that its name says.
        mirror: Debian mirror; empty for apt's.
        compression: How dependency and code layers are stored.
        is_lock_updated: Resolve packages and wheels again.
        locks: Folder of the lock files; the recipe's when not given.
        cache_dir: Downloads and built layers.
        is_cached: Whether layers built before may be used.
        epoch_seconds: The time written into the image.
        auth_file: docker's config.json.
    """

    name: str
    cache_dir: Path
    model: Path | None = None
    model_mode: ModelMode = ModelMode.BAKED
    model_url: str = ""
    base: str = ""
    output: str = ""
    is_pushed: bool = False
    mirror: str = ""
    compression: Compression = Compression.ZSTD
    is_lock_updated: bool = False
    locks: Path | None = None
    is_cached: bool = True
    epoch_seconds: int = 0
    auth_file: Path = Path("~/.docker/config.json")


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """A finished image. Sizes are of the stored, compressed bytes."""

    reference: str
    digest: str
    size_bytes: int
    layers: tuple[Layer, ...]
    model_size_bytes: int
    output: str


def build_image(recipe: Recipe, options: BuildOptions, report: Callable[[str], None]) -> BuiltImage:
    """Build an image and bring it where the options say.

    Raises:
        ImageError: Any of its subclasses: a lock, wheel, package, base or registry at fault.
        DiskFullError: No room left.
    """
    target = parse_reference(options.name)
    kind, place = _parse_output(options)
    with ExitStack() as stack:
        layout = ImageLayout(place if kind == "oci" else _scratch(stack, options))
        layout.create()
        builder = _builder(recipe, options, report)
        base, layers = _base(stack, recipe, options, builder)
        is_fetched = options.model_mode is ModelMode.URL
        layers += [*builder.dependencies(with_storage=is_fetched), builder.code()]
        for layer in layers:
            layout.add_file(builder.cache.path(layer), layer.digest)
        if options.model_mode is ModelMode.BAKED:
            layers.append(builder.model(_model(options), layout.blobs))
            report(f"model: {layers[-1].size_bytes / 1e6:.1f} MB (plain)")
        image = _assemble(recipe, options, builder, layout, base, layers)
        if kind:
            for descriptor in base.layers:
                layout.add_file(image.sources[descriptor.digest](), descriptor.digest)
        tag = target.tag or "latest"
        if kind == "oci":
            layout.add_image(image.manifest, tag)
        elif kind == "tar":
            blobs = [d.digest for d in image.blobs]
            write_archive(layout, image.manifest, blobs, tag, place)
        if options.is_pushed:
            _push(target, options, layout, base, image, report)
        return BuiltImage(
            reference=str(target),
            digest=image.manifest.digest,
            size_bytes=image.manifest.size_bytes + sum(d.size_bytes for d in image.blobs),
            layers=tuple(layers),
            model_size_bytes=sum(x.size_bytes for x in layers if x.comment == "model"),
            output=options.output,
        )


@dataclass(frozen=True, kw_only=True)
class _Image:
    """The documents of an image, every blob it is made of, and where each can be had."""

    manifest: Descriptor
    blobs: list[Descriptor]
    sources: dict[str, Source]


def _parse_output(options: BuildOptions) -> tuple[str, Path]:
    if not options.output:
        if not options.is_pushed:
            raise UsageError(
                "the image would go nowhere",
                hint="Give --output oci:DIR, --output tar:FILE or --push.",
            )
        return "", Path()
    kind, _, value = options.output.partition(":")
    if kind not in {"oci", "tar"} or not value:
        raise UsageError(
            f"--output {options.output} is not understood", hint="Write oci:DIR or tar:FILE."
        )
    return kind, Path(value)


def _scratch(stack: ExitStack, options: BuildOptions) -> Path:
    """Make a layout that lives as long as the build, on the cache's disk so that links work."""
    options.cache_dir.mkdir(parents=True, exist_ok=True)
    return Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.cache_dir)))


def _builder(recipe: Recipe, options: BuildOptions, report: Callable[[str], None]) -> LayerBuilder:
    builder = LayerBuilder(
        recipe=recipe,
        locks=options.locks or recipe.folder,
        cache=LayerCache(options.cache_dir / "layers", is_enabled=options.is_cached),
        downloads=options.cache_dir / "downloads",
        compression=options.compression,
        mtime=options.epoch_seconds,
        is_update=options.is_lock_updated,
        report=report,
    )
    if not builder.byte_code_version:
        report(
            f"warning: no byte code goes into the image, so it starts slower: "
            f"run zse with Python {recipe.python} to have it made"
        )
    return builder


def _base(
    stack: ExitStack, recipe: Recipe, options: BuildOptions, builder: LayerBuilder
) -> tuple[Base, list[Layer]]:
    """Return the base, and the layers that were built for it."""
    name = parse_base(options.base or recipe.base)
    if name.kind == "debian":
        suite = suite_of(name.value, recipe.debian.suite, python=recipe.python, known=SUITE_PYTHON)
        archive = Archive(
            mirrors=find_mirrors(options.mirror),
            cache=builder.downloads / "debian",
            report=builder.report,
        )
        return Base(name=f"debian:{suite}"), [builder.debian(archive, suite)]
    if name.kind == "rootfs":
        path = Path(name.value)
        layer = layer_from_rootfs(path, builder.cache.blobs, compression=builder.compression)
        return Base(name=f"rootfs:{path.name}"), [layer]
    if name.kind == "oci":
        return base_from_layout(name.value, platform=recipe.platform), []
    reference = parse_reference(name.value)
    registry = stack.enter_context(_registry(reference, options))
    cache = builder.downloads / "bases"
    return base_from_registry(registry, platform=recipe.platform, cache=cache), []


def _registry(reference: Reference, options: BuildOptions) -> Registry:
    return Registry(reference, find_credentials(reference.host, options.auth_file.expanduser()))


def _model(options: BuildOptions) -> Path:
    if options.model is None or not options.model.is_file():
        raise NotFoundError(
            f"the model file {options.model} does not exist",
            hint="Give a .zse file, or --model volume to mount one later.",
        )
    return options.model


def _assemble(
    recipe: Recipe,
    options: BuildOptions,
    builder: LayerBuilder,
    layout: ImageLayout,
    base: Base,
    layers: list[Layer],
) -> _Image:
    """Write config and manifest into the layout."""
    content = build_config(
        base.config,
        layers,
        _settings(recipe, options),
        platform=recipe.platform,
        epoch_seconds=options.epoch_seconds,
    )
    config = Descriptor(
        media_type=MEDIA_TYPE_CONFIG, digest=layout.add_bytes(content), size_bytes=len(content)
    )
    own = [
        Descriptor(media_type=x.media_type, digest=x.digest, size_bytes=x.size_bytes)
        for x in layers
    ]
    document = build_manifest(config, [*base.layers, *own], _annotations(options, builder, base))
    layout.add_bytes(document)
    sources: dict[str, Source] = {d.digest: _in_layout(layout, d) for d in [*own, config]}
    for descriptor in base.layers:
        sources[descriptor.digest] = _in_base(base, descriptor)
    return _Image(
        manifest=Descriptor(
            media_type=MEDIA_TYPE_MANIFEST, digest=digest_of(document), size_bytes=len(document)
        ),
        blobs=[*base.layers, *own, config],
        sources=sources,
    )


def _in_layout(layout: ImageLayout, descriptor: Descriptor) -> Source:
    return lambda: layout.blob_path(descriptor.digest)


def _in_base(base: Base, descriptor: Descriptor) -> Source:
    def fetch() -> Path:
        if base.fetch is None:
            raise NotFoundError(f"the base {base.name} cannot give its layer {descriptor.digest}")
        return base.fetch(descriptor)

    return fetch


def _settings(recipe: Recipe, options: BuildOptions) -> ImageSettings:
    """Say how the image starts; times in the health check are nanoseconds, as docker wants them."""
    is_url = options.model_mode is ModelMode.URL
    if is_url and not options.model_url:
        raise UsageError("--model url needs an address", hint="Give s3://BUCKET/KEY as MODEL.")
    model = options.model_url if is_url else f"/{MODEL_PATH}"
    cache = {"ZSE_CACHE_DIR": "/tmp/zse"} if is_url else {}
    check = recipe.healthcheck
    second = 1_000_000_000
    return ImageSettings(
        entrypoint=recipe.entrypoint,
        env={**recipe.env, **cache, "ZSE_MODEL": model, "PORT": str(recipe.port)},
        labels={**recipe.labels, "org.opencontainers.image.version": zse.__version__},
        user=recipe.user,
        port=recipe.port,
        volumes=["/models"] if options.model_mode is ModelMode.VOLUME else [],
        healthcheck=None
        if check is None
        else {
            "Test": list(check.test),
            "Interval": check.interval_seconds * second,
            "Timeout": check.timeout_seconds * second,
            "StartPeriod": check.start_period_seconds * second,
            "Retries": check.retries,
        },
    )


def _annotations(options: BuildOptions, builder: LayerBuilder, base: Base) -> dict[str, str]:
    """Name what the digest depends on beside the inputs."""
    facts = {
        "org.opencontainers.image.base.name": base.name,
        "org.opencontainers.image.base.digest": base.digest,
        "dev.zse.image-format": IMAGE_FORMAT,
        "dev.zse.cpython": builder.byte_code_version,
        "dev.zse.libzstd": LIBZSTD_VERSION if options.compression is Compression.ZSTD else "",
    }
    return {key: value for key, value in facts.items() if value}


def _push(
    target: Reference,
    options: BuildOptions,
    layout: ImageLayout,
    base: Base,
    image: _Image,
    report: Callable[[str], None],
) -> None:
    host, repository = base.repository
    mounts = {d.digest: repository for d in base.layers} if host == target.host else {}
    with _registry(target, options) as registry:
        blobs = [(descriptor, image.sources[descriptor.digest]) for descriptor in image.blobs]
        push_blobs(registry, blobs, mount_from=mounts, report=report)
        registry.push_manifest(
            target.tag or "latest", layout.read_blob(image.manifest.digest), MEDIA_TYPE_MANIFEST
        )
    report(f"pushed {target}")
