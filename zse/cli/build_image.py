"""``zse build-image``: write an OCI image around a model, without Docker."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from zse.cli.app import App, say
from zse.cli.parameters import AllowNoTokenizer, Force, Gpus, Json, Model, Quant
from zse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.oci.image.options import BuildOptions, BuiltImage
    from zse.oci.recipe import Recipe
    from zse.settings import Settings

_RECIPES_TAKEN = {
    "cpu": "recipe cpu: the image serves on CPUs; for NVIDIA GPUs say --recipe cuda or --gpu ARCH",
    "cuda": "recipe cuda, because of {given}: the image serves on NVIDIA GPUs",
}


Name = Annotated[str, Option(metavar="NAME[:TAG]", help="Name of the image.")]
Output = Annotated[str, Option(metavar="oci:DIR|tar:FILE", help="Where to write the image.")]
Push = Annotated[bool, Option("--push", help="Send it to the registry that NAME says.")]
Base = Annotated[
    str,
    Option(
        metavar="BASE",
        help="debian[:SUITE] (default), an image reference, oci:DIR[:TAG] or rootfs:TAR.",
    ),
]
Mode = Annotated[
    Literal["baked", "volume", "url"],
    Option(
        "--model",
        help="Put the model in, expect it mounted at /models, or fetch it from MODEL at start.",
    ),
]
RecipeName = Annotated[
    str | None,
    Option(
        "--recipe",
        help="Image recipe: cpu, cuda or cuda-dev.  [cuda with --gpu or --kernels, else cpu]",
    ),
]
Platforms = Annotated[
    str | None,
    Option(
        "--platform",
        metavar="OS/ARCH[,...]",
        help="linux/amd64, linux/arm64 or both, in one index; the recipe's first when not given.",
    ),
]
Kernels = Annotated[
    str,
    Option(
        metavar="PLACE",
        help="Kernel packs: a folder, oci:DIR or REGISTRY/REPOSITORY.  [cache, release, triton]",
    ),
]
Mirror = Annotated[str, Option(metavar="URL", help="Debian mirror; apt's when not given.")]
HowStored = Annotated[
    Literal["zstd", "gzip", "none"],
    Option(help="How layers are stored; the model is always plain."),
]
UpdateLock = Annotated[bool, Option("--update-lock", help="Resolve packages and wheels again.")]
Locks = Annotated[Path | None, Option(help="Folder of the lock files.")]
MaxSize = Annotated[str, Option(metavar="SIZE", help="Fail when larger: 250MB, 2GiB.")]
SecretWords = Annotated[
    list[str] | None,
    Option(
        "--secret",
        metavar="NAME=FILE|env:VAR",
        help="For pip alone, never for the image: index-url, extra-index-url, proxy or netrc.",
    ),
]
Attest = Annotated[
    bool, Option(help="Store a bill of materials (SPDX) and provenance (SLSA) beside the image.")
]
NoCache = Annotated[bool, Option("--no-cache", help="Build every layer anew.")]


app = App()


@app.command("build-image")
def command(
    *,
    model: Model,
    name: Name,
    output: Output = "",
    force: Force = False,
    push: Push = False,
    base: Base = "",
    model_mode: Mode = "baked",
    quant: Quant = None,
    recipe_name: RecipeName = None,
    platforms: Platforms = None,
    kernels: Kernels = "",
    gpus: Gpus = None,
    mirror: Mirror = "",
    compression: HowStored = "zstd",
    update_lock: UpdateLock = False,
    locks: Locks = None,
    max_size: MaxSize = "",
    secrets: SecretWords = None,
    attest: Attest = True,
    allow_no_tokenizer: AllowNoTokenizer = False,
    no_cache: NoCache = False,
    as_json: Json = False,
) -> None:
    """Write an OCI image that serves MODEL.

    Nothing runs in the image, no daemon and no root are needed, and the same inputs give the same
    digest.
    """
    from zse.oci.image.options import BuildOptions, ModelMode
    from zse.oci.layout.layer import Compression
    from zse.oci.python.secrets import read_secrets
    from zse.settings import load_settings, subprocess_environment
    from zse.units import parse_size

    settings = load_settings()
    recipe = _recipe(recipe_name, gpus or [], has_kernels=bool(kernels))
    wanted = tuple(filter(None, map(str.strip, (platforms or "").split(","))))
    options = BuildOptions(
        name=name, platforms=wanted, base=base, output=output, locks=locks,
        model_mode=ModelMode(model_mode), model_url=model if model_mode == "url" else "",
        is_forced=force, is_pushed=push, is_attested=attest, is_cached=not no_cache,
        is_lock_updated=update_lock, compression=Compression(compression),
        max_size_bytes=parse_size(max_size) if max_size else 0,
        secrets=read_secrets(secrets or [], subprocess_environment()),
        mirror=mirror or settings.debian_mirror,
        cache_dir=settings.cache_dir / "images", epoch_seconds=settings.source_date_epoch,
        auth_file=settings.registry_auth_file,
    )  # fmt: skip
    find_model = partial(_located, model, quant, settings, allow_no_tokenizer=allow_no_tokenizer)
    built = _build(recipe, options, kernels, settings, find_model)
    typer.echo(_as_json(built) if as_json else built.digest)
    say(_summary(built))
    for words in dict.fromkeys(words for it in built.platforms for words in it.warnings):
        say(f"warning: {words}")
    for step in built.next_steps:
        say(f"{step.purpose}:\n  {step.command}")


def _build(
    recipe: Recipe,
    options: BuildOptions,
    kernels: str,
    settings: Settings,
    find_model: Callable[[], tuple[Path, dict[str, str]]],
) -> BuiltImage:
    """Find what goes in, which comes before anything slow, and build the image."""
    from zse.cli.image_kernels import build_image_packs, find_cpu_kernels, find_image_packs
    from zse.cli.stopping import clean_stop
    from zse.cli.transfer_display import shown_progress
    from zse.oci.image.build import build_image
    from zse.oci.image.options import ModelMode
    from zse.oci.image.preflight import check_model, check_options, check_places
    from zse.store.cache_items import filling

    check_options(recipe, options)
    check_places(recipe, options)
    packs = find_image_packs(recipe.kernels.gpu, kernels, settings, say)
    if recipe.kernels.cpu:
        find_cpu_kernels(options.platforms or recipe.platforms[:1])
    with clean_stop(), filling(settings, "images"):
        if options.model_mode is ModelMode.BAKED:
            model, facts = find_model()
            options = replace(options, model=model, model_facts=facts)
            check_model(options)
        options = replace(options, kernels=build_image_packs(packs, settings.cache_dir, say))
        with shown_progress() as progress:
            return build_image(recipe, options, say, progress)


def _located(
    model: str, quant: str | None, settings: Settings, *, allow_no_tokenizer: bool
) -> tuple[Path, dict[str, str]]:
    """Return the .zse file of MODEL, and what the bill of materials says of it: its header's words.

    Raises:
        NoTokenizerError: It holds no tokenizer, and nobody said that it need not.
    """
    from zse.cli.transfer_display import shown_progress
    from zse.format.reader import ZSEReader
    from zse.quantize.locate import locate_model
    from zse.text.tokenizer import check_tokenizer

    with shown_progress() as progress:
        path = locate_model(model, settings, quant=quant, progress=progress)
    with ZSEReader(path) as reader:
        if not allow_no_tokenizer:
            check_tokenizer(reader, path.name)
        provenance = reader.header.provenance
    source, options = str(provenance.get("source", "")), provenance.get("options") or {}
    return path, {
        "name": source or "model",
        "version": str(provenance.get("revision", "")),
        "source": source,
        "quantization": str(options.get("quantization", "")),
        "converted by": str(provenance.get("tool", "")),
    }


def _recipe(name: str | None, gpu_names: list[str], *, has_kernels: bool) -> Recipe:
    """Return the recipe, with the GPU architectures that were asked for.

    Raises:
        UsageError: An architecture is unknown, or the recipe carries no kernels.
        NotFoundError: There is no such recipe.
    """
    from zse.kernels.targets import target_named
    from zse.oci.recipe import load_recipe, recipe_folder

    gpus = tuple(target_named(each).name for each in dict.fromkeys(gpu_names))
    given = "--gpu" if gpus else "--kernels" if has_kernels else ""
    recipe = load_recipe(recipe_folder(name or ("cuda" if given else "cpu")))
    if given and not recipe.kernels.gpu:
        raise UsageError(
            f"the recipe {recipe.name} carries no kernel packs, which {given} is about",
            hint=f"Leave out {given}, or choose --recipe cuda.",
        )
    if not name:
        say(_RECIPES_TAKEN[recipe.name].format(given=given))
    return replace(recipe, kernels=replace(recipe.kernels, gpu=gpus)) if gpus else recipe


def _summary(built: BuiltImage) -> str:
    place = f" in {built.output}" if built.output else ""
    sizes = [
        f"{(it.size_bytes - it.model_size_bytes) / 1e6:.1f} MB image + "
        f"{it.model_size_bytes / 1e6:.1f} MB model"
        for it in built.platforms
    ]
    if len(sizes) > 1:
        sizes = [f"{it.platform} {size}" for it, size in zip(built.platforms, sizes, strict=True)]
    return f"{built.reference}{place}: {', '.join(sizes)}"


def _as_json(built: BuiltImage) -> str:
    shown = ("reference", "digest", "size_bytes", "model_size_bytes")
    return json.dumps({name: getattr(built, name) for name in shown} | asdict(built), indent=2)
