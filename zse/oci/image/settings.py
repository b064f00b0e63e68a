"""What an image says beside its layers: how it starts, and what it was made with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import zse
from zse.oci.image.facts import NO_BYTE_CODE, ImageFacts
from zse.oci.image.layers import MODEL_PATH
from zse.oci.image.options import ModelMode
from zse.oci.layout.cache import IMAGE_FORMAT
from zse.oci.layout.layer import LIBZSTD_VERSION, Compression

if TYPE_CHECKING:
    from zse.oci.image.base import Base
    from zse.oci.image.layers import LayerBuilder, ModelLayer
    from zse.oci.recipe import Healthcheck

_NANOSECONDS = 1_000_000_000
_TITLE = "org.opencontainers.image.title"


def image_facts(builder: LayerBuilder, model: ModelLayer | None) -> ImageFacts:
    """Say what the image holds, for its labels; its model's layer is None when not baked in."""
    recipe, options = builder.build.recipe, builder.build.options
    known = options.model_facts
    return ImageFacts(
        version=zse.__version__,
        recipe=recipe.name,
        device=recipe.env.get("ZSE_DEVICE", ""),
        kernels=tuple(sorted(recipe.kernels.gpu)),
        weights=str(options.model_mode),
        model_name=known.get("name", ""),
        model_revision=known.get("version", ""),
        model_scheme=known.get("quantization", ""),
        model_sha256=model.sha256 if model else "",
        model_url=options.shown_model_url,
        byte_code=builder.python.version or NO_BYTE_CODE,
    )


def image_settings(builder: LayerBuilder, model: ModelLayer | None) -> dict[str, Any]:
    """Say how the image starts, in the words of an image's config; what is not wanted is empty."""
    recipe, options = builder.build.recipe, builder.build.options
    facts = image_facts(builder, model)
    is_url = options.model_mode is ModelMode.URL
    place = options.model_url if is_url else f"/{MODEL_PATH}"
    cache = {"ZSE_CACHE_DIR": "/tmp/zse"} if is_url else {}
    return {
        "Entrypoint": list(recipe.entrypoint),
        "Cmd": list(recipe.command),
        "Env": {**recipe.env, **cache, "ZSE_MODEL": place, "PORT": str(recipe.port)},
        "Labels": {
            **recipe.labels,
            **({_TITLE: facts.model_name} if facts.model_name else {}),
            "org.opencontainers.image.version": zse.__version__,
            **facts.to_labels(),
        },
        "User": recipe.user,
        "WorkingDir": "/",
        "ExposedPorts": {f"{recipe.port}/tcp": {}},
        "Volumes": {"/models": {}} if options.model_mode is ModelMode.VOLUME else {},
        "Healthcheck": _healthcheck(recipe.healthcheck) if recipe.healthcheck else {},
    }


def image_annotations(builder: LayerBuilder, base: Base) -> dict[str, str]:
    """Name what the digest depends on beside the inputs."""
    is_zstd = builder.build.options.compression is Compression.ZSTD
    facts = {
        "org.opencontainers.image.base.name": base.name,
        "org.opencontainers.image.base.digest": base.digest,
        "dev.zse.image-format": IMAGE_FORMAT,
        "dev.zse.recipe": builder.build.recipe.name,
        "dev.zse.cpython": builder.python.version,
        "dev.zse.libzstd": LIBZSTD_VERSION if is_zstd else "",
    }
    return {key: value for key, value in facts.items() if value}


def _healthcheck(check: Healthcheck) -> dict[str, Any]:
    """Write the check as docker wants it, times in nanoseconds."""
    return {
        "Test": list(check.test),
        "Interval": check.interval_seconds * _NANOSECONDS,
        "Timeout": check.timeout_seconds * _NANOSECONDS,
        "StartPeriod": check.start_period_seconds * _NANOSECONDS,
        "Retries": check.retries,
    }
