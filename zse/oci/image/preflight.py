"""Every check of a build that needs nothing built, so that a typo costs no compile and no download.

``check_options`` looks at what was said and at the output; ``check_places`` at locks, base and
registry. Who has to make a model or kernels calls both before; ``build_image`` repeats the first.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import NotFoundError, StoreError, UsageError
from zse.oci.errors import ImageRule
from zse.oci.image.base import check_rootfs, open_base, parse_base, suite_of
from zse.oci.image.options import BuildOptions, ModelMode
from zse.oci.layout.manifest import timestamp
from zse.oci.recipe import load_lock, lock_name
from zse.oci.registry.client import open_registry
from zse.oci.registry.reference import parse_reference
from zse.records import record
from zse.settings import Settings
from zse.store import is_address, parse_location
from zse.store.overwrite import WouldReplaceError, check_output

if TYPE_CHECKING:
    from zse.oci.recipe import Recipe


@record
class Output:
    """A parsed ``--output``."""

    kind: str
    """``oci``, ``tar``, or empty where nothing is kept here."""
    path: Path


def parse_output(options: BuildOptions) -> Output:
    """Return where the image is written.

    Raises:
        UsageError: It would go nowhere, or the words are not understood.
    """
    if not options.output:
        if not options.is_pushed:
            raise UsageError(
                "the image would go nowhere",
                hint="Give --output oci:DIR, --output tar:FILE or --push.",
            )
        return Output(kind="", path=Path())
    kind, _, value = options.output.partition(":")
    if kind not in {"oci", "tar"} or not value:
        raise UsageError(
            f"--output {options.output} is not understood", hint="Write oci:DIR or tar:FILE."
        )
    return Output(kind=kind, path=Path(value))


def recipes_of(recipe: Recipe, options: BuildOptions) -> list[Recipe]:
    """Return the recipe as it is for each platform that is asked for.

    Raises:
        BadReferenceError: The recipe is not made for one of them.
    """
    return [recipe.for_platform(name) for name in options.platforms or (recipe.platform,)]


def check_options(recipe: Recipe, options: BuildOptions) -> None:
    """Refuse what could only give a broken image.

    Raises:
        UsageError: The options contradict each other, or the output would replace something.
        StoreError: The output cannot be written.
        BadReferenceError: A name, a base or a platform is wrong.
    """
    if parse_reference(options.name).digest:
        raise UsageError(
            f"--name {options.name} holds a digest, which only a finished image has",
            hint="Write NAME or NAME:TAG.",
        )
    output = parse_output(options)
    if output.kind:
        _check_output(output, force=options.is_forced)
    recipes_of(recipe, options)
    timestamp(options.epoch_seconds)  # refuses what no document can hold
    if options.model_mode is ModelMode.URL:
        _check_address(options.model_url)
    if len(set(options.platforms)) != len(options.platforms):
        raise UsageError(f"--platform names one twice: {', '.join(options.platforms)}")
    if len(options.platforms) > 1 and parse_base(options.base or recipe.base).kind == "rootfs":
        raise UsageError(
            "a root file system is made for one platform",
            hint="Give one --platform, or a base that has several.",
        )
    if options.kernels and not recipe.kernels.gpu:
        raise UsageError(
            f"the recipe {recipe.name} carries no kernel packs",
            hint="Leave out --kernels, or choose --recipe cuda.",
        )


def check_places(recipe: Recipe, options: BuildOptions) -> None:
    """Look whether the locks and the base are there, and the registry takes the image.

    Raises:
        NotFoundError: The base is not there.
        ImageError: Any of its subclasses: a lock, base or registry at fault.
    """
    for one in recipes_of(recipe, options):
        if not options.is_lock_updated:
            name = lock_name("wheels", one.architecture)
            load_lock(options.locks_of(one) / name, "wheel")
        _check_base(one, options)
    if options.is_pushed:
        with open_registry(parse_reference(options.name), options.auth_file) as registry:
            registry.check_push()


def check_model(options: BuildOptions) -> Path:
    """Return the model that is baked in.

    Raises:
        NotFoundError: There is no such file.
        ImageError: It alone has more bytes than the image may have.
    """
    if options.model is None or not options.model.is_file():
        raise NotFoundError(
            f"the model file {options.model} does not exist",
            hint="Give a .zse file, or --model volume to mount one later.",
        )
    size_bytes, limit_bytes = options.model.stat().st_size, options.max_size_bytes
    if limit_bytes and size_bytes > limit_bytes:
        raise ImageRule.IMAGE_TOO_LARGE(
            f"the model alone has {size_bytes / 1e6:.1f} MB, the limit is "
            f"{limit_bytes / 1e6:.1f} MB (--max-size)",
            hint="Raise --max-size, or leave the model out: --model volume or --model url.",
        )
    return options.model


def _check_address(url: str) -> None:
    """Refuse what the image could not fetch its model from."""
    location = parse_location(url) if is_address(url) else None
    if location is None or location.is_local or location.is_prefix:
        raise UsageError(
            f"--model url needs the address of a model, not {url!r}",
            hint="Give s3://BUCKET/KEY, hf://OWNER/NAME/FILE or https://HOST/FILE as MODEL.",
        )


def _check_output(output: Output, *, force: bool) -> None:
    """Refuse to build over something else, and where nothing can be written."""
    path = output.path.absolute()
    folder = path if output.kind == "oci" else path.parent
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise WouldReplaceError(f"{existing} is a file, not a folder", hint="Name another output.")
    if output.kind == "tar":
        check_output(path, Settings(), force=force)
    elif path.exists() and any(path.iterdir()) and not (path / "oci-layout").is_file():
        raise WouldReplaceError(
            f"{output.path} exists already and is not an OCI image layout",
            hint="Name a new or empty folder, or a layout.",
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StoreError(
            f"cannot write into {existing}", hint="Check the path of --output and its permissions."
        )


def _check_base(recipe: Recipe, options: BuildOptions) -> None:
    """Refuse a base that is not there, or on which nothing can be built."""
    name = parse_base(options.base or recipe.base)
    if name.kind == "debian":
        suite_of(name.value, recipe.debian.suite, python=recipe.python)
    elif name.kind == "rootfs":
        check_rootfs(Path(name.value))
    else:
        with ExitStack() as stack:
            open_base(name, recipe.platform, options, stack)
