"""`zse kernels`: build, look into and ship kernel packs; time kernels on the GPU at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zse.cli.kernels_show import (
    build_progress,
    describe_build,
    describe_pack,
    print_build,
    print_pack,
)
from zse.cli.stopping import clean_stop
from zse.errors import UsageError
from zse.kernels.catalog import all_variants
from zse.kernels.find import SUFFIX, find_pack, section_name
from zse.kernels.pack import KernelPack
from zse.kernels.sources import source_digest
from zse.kernels.targets import TARGETS, target_named
from zse.settings import load_settings
from zse.store.overwrite import check_output

if TYPE_CHECKING:
    from zse.cli.kernels_tune import Timing
    from zse.kernels.targets import Target


@click.group(name="kernels")
def command() -> None:
    """Build kernel packs for GPUs, look into them, ship them; tune on the GPU at hand."""


@command.command(name="build")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    required=True,
    metavar="ARCH",
    help=f"Architecture to build for, again and again: {', '.join(TARGETS)}.",
)
@click.option(
    "-o", "--out", required=True, type=click.Path(), help="A .zkp file, or a folder for ARCH.zkp."
)
@click.option("--jobs", type=click.IntRange(min=0), default=0, help="Compilers at a time.")
@click.option("--keep-going", is_flag=True, help="Leave out kernels that do not compile.")
@click.option("--force", is_flag=True, help="Replace packs that are there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def build(
    gpus: tuple[str, ...], out: str, jobs: int, keep_going: bool, force: bool, as_json: bool
) -> None:
    """Compile every kernel ahead of time. Needs triton, but no GPU.

    The same sources and the same triton give the same bytes.
    """
    from zse.kernels.build.builder import build_pack
    from zse.kernels.build.writer import write_whole
    from zse.store.cache_room import filling

    targets = [target_named(name) for name in dict.fromkeys(gpus)]
    paths = _output_paths(Path(out), targets)
    for path in paths:
        check_output(path, force=force)
    variants = all_variants()
    reports = []
    for target, path in zip(targets, paths, strict=True):
        with (
            clean_stop(),
            build_progress(target) as progress,
            filling(load_settings().cache_dir, "triton") as triton_folder,
        ):
            built = build_pack(
                target,
                variants,
                source_digest=source_digest(),
                cache_dir=triton_folder,
                processes=jobs,
                keep_going=keep_going,
                progress=progress,
            )
        write_whole(path, built.data)
        reports.append({"path": str(path), **describe_build(built)})
        if not as_json:
            print_build(path, built)
    if as_json:
        click.echo(json.dumps({"packs": reports}, indent=2, sort_keys=True))


@command.command(name="list")
@click.argument("pack", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_command(pack: str, as_json: bool) -> None:
    """Show what PACK holds, and whether it is of this version's kernels."""
    opened = KernelPack.open(pack)
    report = describe_pack(opened, all_variants())
    if as_json:
        click.echo(json.dumps(report, indent=2, sort_keys=True))
        return
    print_pack(report)


@command.command(name="verify")
@click.argument("pack", type=click.Path())
def verify(pack: str) -> None:
    """Check every byte of PACK."""
    opened = KernelPack.open(pack)
    opened.verify()
    click.echo(f"{pack}: {len(opened)} kernels for {opened.target}, every digest agrees")


@command.command(name="push")
@click.argument("place")
@click.argument("packs", nargs=-1, required=True, type=click.Path(path_type=Path))
def push(place: str, packs: tuple[Path, ...]) -> None:
    """Store PACKS as one artifact in PLACE: oci:DIR or REGISTRY/REPOSITORY.

    PACKS are files or folders of packs. The tag is the digest of the kernels' sources unless PLACE
    names another, so that `zse build-image` of the same zse finds them there.
    """
    from zse.kernels.build.artifact import push_artifact

    paths = [
        path
        for given in packs
        for path in (sorted(given.glob(f"*{SUFFIX}")) if given.is_dir() else [given])
    ]
    if not paths:
        raise UsageError(f"no pack (*{SUFFIX}) in {', '.join(map(str, packs))}")
    auth_file = Path(load_settings().registry_auth_file)
    digest = push_artifact(
        place, paths, auth_file=auth_file, report=lambda words: click.echo(words, err=True)
    )
    click.echo(digest)


@command.command(name="pull")
@click.argument("place")
@click.option("--gpu", "gpus", multiple=True, metavar="ARCH", help="Only these.  [all]")
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder for ARCH.zkp."
)
@click.option("--force", is_flag=True, help="Replace packs that are there.")
def pull(place: str, gpus: tuple[str, ...], out: Path, force: bool) -> None:
    """Fetch packs for this zse from PLACE, an artifact: oci:DIR or REGISTRY/REPOSITORY."""
    from zse.kernels.build.artifact import open_artifact
    from zse.kernels.build.writer import write_whole

    auth_file = Path(load_settings().registry_auth_file)
    with open_artifact(place, source_digest(), auth_file=auth_file) as artifact:
        targets = [target_named(gpu) for gpu in dict.fromkeys(gpus or artifact.layers)]
        paths = {target.name: out / f"{target.name}{SUFFIX}" for target in targets}
        for path in paths.values():
            check_output(path, force=force)
        for gpu, path in paths.items():
            write_whole(path, artifact.read(gpu))
            click.echo(path)


@command.command(name="add")
@click.argument("file", type=click.Path())
@click.argument("pack", type=click.Path())
def add(file: str, pack: str) -> None:
    """Put PACK into the .zse FILE, in place, as its section for that architecture."""
    from zse.format.append import append_section

    opened = KernelPack.open(pack)
    opened.verify()
    name = section_name(target_named(opened.target))
    section = append_section(file, name, Path(pack).read_bytes())
    click.echo(f"{file}: section {section.name}, {section.length_bytes} bytes")


@command.command(name="tune")
@click.option("-o", "--out", required=True, type=click.Path(), help="The table, a JSON file.")
@click.option("--gpu-index", type=click.IntRange(min=0), default=0, help="Which GPU.  [0]")
@click.option("--kernels", "pack", type=click.Path(), help="Kernel pack.  [image, cache]")
@click.option(
    "--scheme",
    "schemes",
    multiple=True,
    type=click.Choice(["int4", "nf4", "int8", "bf16", "fp16"]),
    help="Scheme of the matrices, again and again.  [int4, int8]",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="CxR",
    help="Columns and rows of a matrix.  [those of Qwen2.5 7B to 72B and Llama 3 8B]",
)
@click.option(
    "--rows", type=click.IntRange(1, 256), multiple=True, help="Tokens.  [1, 2, 4, ... 256]"
)
@click.option("--force", is_flag=True, help="Replace a table that is there.")
def tune_command(
    out: str,
    gpu_index: int,
    pack: str | None,
    schemes: tuple[str, ...],
    shapes: tuple[str, ...],
    rows: tuple[int, ...],
    force: bool,
) -> None:
    """Time the forms of matrix products on the GPU at hand.

    The table holds the shapes for which a form beats the one that the planner takes by itself.
    """
    from zse.cli.kernels_tune import ROWS, SHAPES, Bench, tune
    from zse.device.cuda import Gpu
    from zse.kernels.build.writer import write_whole
    from zse.kernels.tuning import slug

    check_output(Path(out), force=force)
    settings = load_settings()
    named = pack or settings.serve.load.device.kernels
    wanted = [_parse_shape(text) for text in shapes] or list(SHAPES)
    with Gpu.open(gpu_index) as gpu:
        found = find_pack(
            gpu.info,
            explicit=Path(named) if named else None,
            sections=None,
            cache_dir=settings.cache_dir,
        )
        bench = Bench(gpu, found)
        try:
            tuning = tune(
                bench,
                gpu.info.name,
                schemes=schemes or ("int4", "int8"),
                shapes=wanted,
                tokens=rows or ROWS,
                progress=_print_timing,
            )
        finally:
            bench.close()
    write_whole(Path(out), tuning.to_json())
    click.echo(f"wrote: {out}")
    click.echo(f"used when it lies in: {settings.cache_dir / 'tuned'}/{slug(gpu.info.name)}.json")


def _print_timing(timing: Timing) -> None:
    change = timing.best_seconds / timing.planned_seconds - 1
    click.echo(
        f"{timing.table:32} {timing.shape:>14} {timing.best_seconds * 1e6:9.2f} us "
        f"{change:+7.1%}  splits {timing.best.splits:2}  {timing.best.variant.key}"
    )


def _parse_shape(text: str) -> tuple[int, int]:
    columns, _, rows = text.partition("x")
    if not (columns.isdecimal() and rows.isdecimal() and int(columns) and int(rows)):
        raise UsageError(
            f"{text!r} is not a shape", hint="Write columns and rows, such as 3584x37888."
        )
    return int(columns), int(rows)


def _output_paths(out: Path, targets: list[Target]) -> list[Path]:
    if out.suffix != SUFFIX or out.is_dir():
        return [out / f"{target.name}{SUFFIX}" for target in targets]
    if len(targets) != 1:
        raise UsageError(
            f"{out} is one pack, but {len(targets)} architectures were asked for",
            hint="Name a folder: it gets one pack for each architecture.",
        )
    return [out]
