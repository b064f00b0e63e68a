"""`zse kernels`: build, look into and ship kernel packs; time kernels on the GPU at hand."""

from __future__ import annotations

import json
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zse.cli.app import App, say
from zse.cli.parameters import Force, Gpus, Json
from zse.errors import UsageError
from zse.kernels.targets import TARGETS, target_named
from zse.settings import load_settings

if TYPE_CHECKING:
    from zse.cli.kernels_tune import Timing
    from zse.kernels.targets import Target


Pack = Annotated[str, Argument(metavar="PACK", help="A .zkp file.")]
Place = Annotated[
    str, Argument(metavar="PLACE", help="An artifact: oci:DIR or REGISTRY/REPOSITORY.")
]

Scheme = StrEnum("Scheme", ["int4", "int3", "int2", "nf4", "nl4", "mxfp4", "int8", "bf16", "fp16"])
Schemes = Annotated[
    list[Scheme] | None, Option("--scheme", help="Of the matrices, again and again.  [int4, int8]")
]
Shapes = Annotated[
    list[str] | None,
    Option(
        "--shape",
        metavar="CxR",
        help="Columns and rows of a matrix.  [those of Qwen2.5 7B to 72B and Llama 3 8B]",
    ),
]

app = App(help="Build, inspect and share kernel packs for GPUs; tune kernels on the GPU at hand.")


@app.command("build")
def build(
    gpus: Annotated[
        list[str],
        Option(
            "--gpu",
            metavar="ARCH",
            help=f"Architecture to build for, again and again: {', '.join(TARGETS)}.",
        ),
    ],
    out: Annotated[Path, Option("-o", "--out", help="A .zkp file, or a folder for ARCH.zkp.")],
    jobs: Annotated[int, Option(min=0, show_default=False, help="Compilers at a time.")] = 0,
    keep_going: Annotated[
        bool, Option("--keep-going", help="Leave out kernels that do not compile.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compile every kernel ahead of time. Needs triton, but no GPU.

    The same sources and the same triton give the same bytes.
    """
    from zse.cli.kernels_show import build_progress, describe_build, print_build
    from zse.cli.stopping import clean_stop
    from zse.kernels.build.builder import build_pack
    from zse.kernels.catalog import all_variants
    from zse.kernels.sources import source_digest
    from zse.store.cache_items import filling
    from zse.store.overwrite import check_output
    from zse.store.whole import write_whole

    targets = [target_named(name) for name in dict.fromkeys(gpus)]
    paths = _output_paths(out, targets)
    for path in paths:
        check_output(path, load_settings(), force=force)
    variants = all_variants()
    reports = []
    for target, path in zip(targets, paths, strict=True):
        with (
            clean_stop(),
            build_progress(target) as progress,
            filling(load_settings(), "triton") as triton_folder,
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
        typer.echo(json.dumps({"packs": reports}, indent=2, sort_keys=True))


@app.command("list")
def list_command(pack: Pack, as_json: Json = False) -> None:
    """Show what PACK holds, and whether it is of this version's kernels."""
    from zse.cli.kernels_show import describe_pack, print_pack
    from zse.kernels.catalog import all_variants
    from zse.kernels.pack import KernelPack

    report = describe_pack(KernelPack.open(pack), all_variants())
    if as_json:
        typer.echo(json.dumps(report, indent=2, sort_keys=True))
        return
    print_pack(report)


@app.command("verify")
def verify(pack: Pack) -> None:
    """Check every byte of PACK."""
    from zse.kernels.pack import KernelPack

    opened = KernelPack.open(pack)
    opened.verify()
    typer.echo(f"{pack}: {len(opened)} kernels for {opened.target}, every digest agrees")


@app.command("push")
def push(
    place: Place,
    packs: Annotated[list[Path], Argument(metavar="PACKS", help="Files, or folders of packs.")],
) -> None:
    """Store PACKS as one artifact in PLACE.

    The tag is the digest of the kernels' sources unless PLACE
    names another, so that `zse build-image` of the same zse finds them there.
    """
    from zse.kernels.build.artifact import push_artifact
    from zse.kernels.find import SUFFIX

    paths = [
        path
        for given in packs
        for path in (sorted(given.glob(f"*{SUFFIX}")) if given.is_dir() else [given])
    ]
    if not paths:
        raise UsageError(f"no pack (*{SUFFIX}) in {', '.join(map(str, packs))}")
    auth_file = load_settings().registry_auth_file
    typer.echo(push_artifact(place, paths, auth_file=auth_file, report=say))


@app.command("pull")
def pull(
    place: Place,
    out: Annotated[Path, Option("-o", "--out", help="Folder for ARCH.zkp.")],
    gpus: Gpus = None,
    force: Force = False,
) -> None:
    """Fetch packs for this zse from PLACE."""
    from zse.kernels.build.artifact import open_artifact
    from zse.kernels.find import SUFFIX
    from zse.kernels.sources import source_digest
    from zse.store.overwrite import check_output
    from zse.store.whole import write_whole

    auth_file = load_settings().registry_auth_file
    with open_artifact(place, source_digest(), auth_file=auth_file) as artifact:
        targets = [target_named(gpu) for gpu in dict.fromkeys(gpus or artifact.layers)]
        paths = {target.name: out / f"{target.name}{SUFFIX}" for target in targets}
        for path in paths.values():
            check_output(path, load_settings(), force=force)
        for gpu, path in paths.items():
            write_whole(path, artifact.read(gpu))
            typer.echo(path)


@app.command("add")
def add(file: Annotated[str, Argument(metavar="FILE", help="A .zse file.")], pack: Pack) -> None:
    """Put PACK into the .zse FILE, in place, for its architecture."""
    from zse.format.append import append_section
    from zse.kernels.find import section_name
    from zse.kernels.pack import KernelPack

    opened = KernelPack.open(pack)
    opened.verify()
    name = section_name(target_named(opened.target))
    section = append_section(file, name, Path(pack).read_bytes())
    typer.echo(f"{file}: section {section.name}, {section.length_bytes} bytes")


@app.command("tune")
def tune_command(
    out: Annotated[Path, Option("-o", "--out", help="The table, a JSON file.")],
    gpu_index: Annotated[int, Option(min=0, help="Which GPU.")] = 0,
    pack: Annotated[
        str | None, Option("--kernels", metavar="PATH", help="Kernel pack.  [image, cache]")
    ] = None,
    schemes: Schemes = None,
    shapes: Shapes = None,
    rows: Annotated[
        list[int] | None, Option(min=1, max=256, help="Tokens.  [1, 2, 4, ... 256]")
    ] = None,
    force: Force = False,
) -> None:
    """Find the fastest kernels for the matrix products of this GPU.

    The table holds the shapes for which a form beats the one that the planner takes by itself.
    """
    from zse.cli.kernels_tune import ROWS, SHAPES, Bench, tune
    from zse.device.open import open_gpu
    from zse.kernels.find import find_pack
    from zse.kernels.tuning import slug
    from zse.store.overwrite import check_output
    from zse.store.whole import write_whole

    check_output(out, load_settings(), force=force)
    settings = load_settings()
    named = pack or settings.serve.load.device.kernels
    wanted = [_parse_shape(text) for text in shapes or ()] or list(SHAPES)
    with closing(open_gpu(f"cuda:{gpu_index}")) as gpu:
        found = find_pack(
            gpu.info,
            explicit=Path(named) if named else None,
            sections=None,
            cache_dir=settings.cache_dir,
        )
        with closing(Bench(gpu, found)) as bench:
            tuning = tune(
                bench,
                gpu.info.name,
                schemes=schemes or ("int4", "int8"),
                shapes=wanted,
                tokens=rows or ROWS,
                progress=_print_timing,
            )
    write_whole(out, tuning.to_json())
    typer.echo(f"wrote: {out}")
    typer.echo(f"used when it lies in: {settings.cache_dir / 'tuned'}/{slug(gpu.info.name)}.json")


def _print_timing(timing: Timing) -> None:
    change = timing.best_seconds / timing.planned_seconds - 1
    typer.echo(
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
    from zse.kernels.find import SUFFIX

    if out.suffix != SUFFIX or out.is_dir():
        return [out / f"{target.name}{SUFFIX}" for target in targets]
    if len(targets) != 1:
        raise UsageError(
            f"{out} is one pack, but {len(targets)} architectures were asked for",
            hint="Name a folder: it gets one pack for each architecture.",
        )
    return [out]
