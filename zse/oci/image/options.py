"""What a build is asked for, and what it says it made."""

from __future__ import annotations

import tempfile
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from zse.oci.layout.layer import Compression, Layer
from zse.records import record
from zse.store.location import parse_location

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from zse.oci.image.next_steps import NextStep
    from zse.oci.layout.folder import ImageLayout
    from zse.oci.layout.layer import StageProgress
    from zse.oci.python.secrets import Secrets
    from zse.oci.recipe import Recipe


class ModelMode(StrEnum):
    """Where the running image finds its model."""

    BAKED = "baked"
    VOLUME = "volume"
    URL = "url"


@record
class BuildOptions:
    """What to build and where it goes."""

    name: str
    """``[HOST/]NAME[:TAG]``."""
    cache_dir: Path
    """Downloads and built layers."""
    platforms: tuple[str, ...] = ()
    """What to build for; the recipe's first when empty. Several become one index."""
    model: Path | None = None
    model_mode: ModelMode = ModelMode.BAKED
    model_url: str = ""
    model_facts: Mapping[str, str] = field(default_factory=dict)
    """What is known of the model: ``name``, ``version``, ``licence``, ``source``."""
    kernels: Mapping[str, Path] = field(default_factory=dict)
    """GPU architecture -> kernel pack, for recipes that carry some."""
    base: str = ""
    """``debian[:SUITE]``, ``oci:DIR``, ``rootfs:TAR`` or a reference; empty: the recipe's."""
    output: str = ""
    """``oci:DIR`` or ``tar:FILE``; empty for none."""
    is_forced: bool = False
    """A tar file that is there already may be replaced."""
    is_pushed: bool = False
    is_attested: bool = True
    max_size_bytes: int = 0
    """The build fails when a platform's image is larger, as stored; 0: any size."""
    mirror: str = ""
    """Debian mirror; empty for apt's."""
    compression: Compression = Compression.ZSTD
    is_lock_updated: bool = False
    """Resolve packages and wheels again."""
    locks: Path | None = None
    """Folder of the lock files; the recipe's when not given."""
    is_cached: bool = True
    epoch_seconds: int = 0
    """The time written into the image."""
    auth_file: Path = Path("~/.docker/config.json")
    secrets: Secrets | None = None
    """Credentials that the build needs and the image must not hold."""

    @property
    def downloads(self) -> Path:
        return self.cache_dir / "downloads"

    def locks_of(self, recipe: Recipe) -> Path:
        return self.locks or recipe.folder

    @property
    def shown_model_url(self) -> str:
        """The model's address without its query, which is a secret where the address is signed."""
        return str(parse_location(self.model_url)) if self.model_url else ""


@record
class Build:
    """A build under way."""

    recipe: Recipe
    """What is built; within one platform as it is for that."""
    options: BuildOptions
    layout: ImageLayout
    """Gets the blobs that are built."""
    stack: ExitStack
    """Closes what the build needs to its end."""
    report: Callable[[str], None]
    """Told what happens, in lines."""
    progress: StageProgress
    """Told how far a layer is."""

    @property
    def locks(self) -> Path:
        return self.options.locks_of(self.recipe)


def scratch_folder(stack: ExitStack, options: BuildOptions) -> Path:
    """Make a folder that lives as long as the build, on the cache's disk so that links work."""
    options.cache_dir.mkdir(parents=True, exist_ok=True)
    return Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.cache_dir)))


@record
class BuiltPlatform:
    """The image of one platform. Sizes are of the stored, compressed bytes."""

    platform: str
    digest: str
    size_bytes: int
    layers: tuple[Layer, ...]
    model_size_bytes: int
    python: str
    """Release of the Python that compiled the byte code; empty when the image holds none."""
    warnings: tuple[str, ...]


@record
class BuiltImage:
    """A finished image; its digest is that of the index when it has several platforms."""

    reference: str
    digest: str
    platforms: tuple[BuiltPlatform, ...]
    output: str
    next_steps: tuple[NextStep, ...] = ()
    """How it is loaded, run and asked."""

    @property
    def size_bytes(self) -> int:
        return max(platform.size_bytes for platform in self.platforms)

    @property
    def model_size_bytes(self) -> int:
        return self.platforms[0].model_size_bytes

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the first platform that were built, its base's not among them."""
        return self.platforms[0].layers
