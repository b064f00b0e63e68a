"""Where an image comes from, as an in-toto statement with a SLSA v1 provenance predicate.

It says what was asked for and everything that went in, by hash. It is not signed: signing is for
those who have a key. Nothing in it depends on the host, so two machines state the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import zse
from zse.oci.layout.cache import IMAGE_FORMAT
from zse.oci.layout.layer import LIBRARY_VERSIONS, LIBZSTD_VERSION, Compression
from zse.oci.layout.manifest import timestamp

if TYPE_CHECKING:
    from zse.oci.image.options import Build
    from zse.oci.image.platform import PlatformImage
    from zse.oci.statements.materials import Material

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PROVENANCE_PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://zse.dev/build-image/v1"
BUILDER = "https://zse.dev/build-image"


def build_provenance(name: str, build: Build, image: PlatformImage) -> dict[str, Any]:
    """Return the statement about an image; ``name`` is its repository, without its registry."""
    options = build.options
    digest = image.manifest.digest.removeprefix("sha256:")
    when = timestamp(options.epoch_seconds)
    is_gzip = options.compression is Compression.GZIP
    internal = {
        "imageFormat": IMAGE_FORMAT,
        "libzstd": LIBZSTD_VERSION,
        **({"zlib": LIBRARY_VERSIONS[Compression.GZIP]} if is_gzip else {}),
        "cpython": image.summary.python,
        "sourceDateEpoch": options.epoch_seconds,
    }
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}}],
        "predicateType": PROVENANCE_PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _parameters(build, image),
                "internalParameters": internal,
                "resolvedDependencies": [_dependency(item) for item in image.materials],
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"zse": zse.__version__}},
                "metadata": {"startedOn": when, "finishedOn": when},
            },
        },
    }


def _parameters(build: Build, image: PlatformImage) -> dict[str, Any]:
    """Say what was asked for; never a path of the host, and no secret."""
    options = build.options
    return {
        "recipe": build.recipe.name,
        "platform": image.manifest.platform,
        "base": image.base.name,
        "compression": str(options.compression),
        "model": str(options.model_mode),
        **({"modelUrl": options.shown_model_url} if options.model_url else {}),
        **({"kernels": sorted(options.kernels)} if options.kernels else {}),
    }


def _dependency(material: Material) -> dict[str, Any]:
    found: dict[str, Any] = {"name": material.file or material.name}
    if material.purl:
        found["uri"] = material.purl
    if material.sha256:
        found["digest"] = {"sha256": material.sha256}
    return found
