"""From a recipe, a model and a base to an image, and from there to a folder, a file or a registry.

Nothing runs in the image and nothing is unpacked to disk: layers are tar streams that this process
writes. The digest is a function of the inputs alone. Several platforms become one index.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.oci.errors import ImageRule
from zse.oci.image.layers import model_layer
from zse.oci.image.next_steps import next_steps
from zse.oci.image.options import (
    Build,
    BuildOptions,
    BuiltImage,
    BuiltPlatform,
    ModelMode,
    scratch_folder,
)
from zse.oci.image.platform import PlatformImage, build_platform
from zse.oci.image.preflight import Output, check_model, check_options, parse_output, recipes_of
from zse.oci.image.publish import WholeImage, publish
from zse.oci.layout.archive import write_archive
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.layer import Compression, StageProgress, no_progress
from zse.oci.layout.manifest import MEDIA_TYPE_INDEX, build_index
from zse.oci.registry.client import open_registry
from zse.oci.registry.reference import parse_reference
from zse.oci.statements.attestation import attest
from zse.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.oci.recipe import Recipe
    from zse.oci.registry.reference import Reference


def build_image(
    recipe: Recipe,
    options: BuildOptions,
    report: Callable[[str], None],
    progress: StageProgress = no_progress,
) -> BuiltImage:
    """Build an image and bring it where the options say; report, in lines, and tell of progress.

    Raises:
        UsageError: The options contradict each other.
        ImageError: Any of its subclasses: a lock, wheel, package, base or registry at fault.
        ImageError: It is over its budget; it was neither pushed nor listed.
        DiskFullError: No room left.
    """
    target = parse_reference(options.name)
    target = replace(target, tag=target.tag or "latest")
    check_options(recipe, options)
    output = parse_output(options)
    with ExitStack() as stack:
        layout = ImageLayout(
            output.path if output.kind == "oci" else scratch_folder(stack, options)
        )
        layout.create()
        build = Build(
            recipe=recipe, options=options, layout=layout, stack=stack, report=report,
            progress=progress,
        )  # fmt: skip
        images = _build_platforms(build)
        for image in images:
            _check_size(build, image.summary)
        top = images[0].manifest
        if len(images) > 1:
            content = build_index([image.manifest for image in images], annotations={})
            top = layout.add(MEDIA_TYPE_INDEX, content)
        whole = WholeImage(
            layout=layout,
            top=top,
            platforms=images,
            attestations=[
                attestation
                for image in images
                if options.is_attested
                for attestation in attest(target.repository, build, image)
            ],
        )
        _store(output, target, whole)
        if options.is_pushed:
            hosts = {image.base.repository for image in images}
            mounts = frozenset(name for host, name in hosts if host == target.host)
            with open_registry(target, options.auth_file, mounts=mounts) as registry:
                publish(registry, whole, report)
            report(f"pushed {target}")
        return BuiltImage(
            reference=str(target),
            digest=top.digest,
            platforms=tuple(image.summary for image in images),
            output=options.output,
            next_steps=next_steps(recipe, options, str(target)),
        )


def _build_platforms(build: Build) -> list[PlatformImage]:
    """Build every platform; the model, which is the same for all, is written first and once."""
    recipes, model = recipes_of(build.recipe, build.options), None
    if build.options.model_mode is ModelMode.BAKED:
        model = model_layer(check_model(build.options), build)
        build.report(f"model: {model.layer.size_bytes / 1e6:.1f} MB (plain)")
    images = []
    for recipe in recipes:
        if len(recipes) > 1:
            build.report(f"{recipe.platform}:")
        images.append(build_platform(replace(build, recipe=recipe), model))
    return images


def _check_size(build: Build, summary: BuiltPlatform) -> None:
    """Hold an image against the caller's limit, or without its model against the recipe's.

    The recipe's limit is about compressed layers: it says nothing of plain ones.
    """
    recipe, options = build.recipe, build.options
    if options.max_size_bytes:
        size_bytes, limit_bytes, name = summary.size_bytes, options.max_size_bytes, "--max-size"
    elif recipe.max_size and options.compression is not Compression.NONE:
        size_bytes = summary.size_bytes - summary.model_size_bytes
        limit_bytes, name = parse_size(recipe.max_size), f"recipe {recipe.name}, no model"
    else:
        return
    if size_bytes > limit_bytes:
        layers = ", ".join(f"{x.comment} {x.size_bytes / 1e6:.1f} MB" for x in summary.layers)
        raise ImageRule.IMAGE_TOO_LARGE(
            f"the {summary.platform} image has {size_bytes / 1e6:.1f} MB, "
            f"the limit is {limit_bytes / 1e6:.1f} MB ({name}); {layers}"
        )


def _store(output: Output, name: Reference, image: WholeImage) -> None:
    """List the image in its layout, or write it as one file."""
    if not output.kind:
        return
    for platform in image.platforms:
        for descriptor in platform.base.layers:
            image.layout.add_file(platform.base.fetch(descriptor), descriptor.digest)
    referrers = [attestation.manifest for attestation in image.attestations]
    if output.kind == "oci":
        image.layout.add_image(image.top, name.tag, referrers)
        return
    manifests = [platform.manifest for platform in image.platforms]
    blobs = [*image.own, *manifests, *referrers]
    blobs += [layer for platform in image.platforms for layer in platform.base.layers]
    digests = [blob.digest for blob in blobs]
    write_archive(image.layout, image.top, manifests, digests, name, output.path, referrers)
