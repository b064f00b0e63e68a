"""``zse mesh``: several machines as one, what would lie where, and who is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from zse.cli.app import App
from zse.cli.parameters import Json, complete_model

if TYPE_CHECKING:
    from zse.cli.titled_tables import Table

app = App(help="Run one model on several machines together.")
LOSSY = ("raw", "bf16", "fp8", "int8", "int4")
Activations = Annotated[
    Literal[LOSSY],  # type: ignore[valid-type]
    Option(
        help="What the wire between machines may lose at most: raw loses nothing, int4 an eighth "
        "of the bytes remain. Each link gets the form in which rows arrive first."
    ),
]


@app.command("plan")
def plan(
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="A .zse file, a checkpoint folder, or a hub id of the registry.",
            autocompletion=complete_model,
        ),
    ],
    nodes: Annotated[
        Path, Option(metavar="FILE", help="The machines and their links, as JSON; see the guide.")
    ],
    quant: Annotated[str, Option(help="The scheme of a MODEL that is not a .zse file.")] = "int4",
    streams: Annotated[
        int, Option(min=1, max=4096, help="Answers at once; 1 asks for the lowest latency.")
    ] = 1,
    context: Annotated[
        int, Option(min=1, max=1 << 24, metavar="TOKENS", help="Of each of them.")
    ] = 4096,
    activations: Activations = "raw",
    as_json: Json = False,
) -> None:
    """Show which machine would compute which layers, and why.

    Nothing is downloaded and no machine is contacted; for a hub id the numbers of the registry
    are used.
    """
    from zse.engine.recorded import recorded_facts
    from zse.errors import needing
    from zse.mesh.codecs import codec_named
    from zse.mesh.facts import read_mesh
    from zse.mesh.plan_report import describe_plan
    from zse.models.work import work_of
    from zse.settings import load_settings

    with needing("mesh", "zse mesh plan"):
        from zse.mesh.partition import plan_layers
    facts = recorded_facts(model, load_settings())
    mesh, lossy = read_mesh(nodes), codec_named(activations)
    work = work_of(facts.spec, facts.loaded_as(quant), streams=streams, context_tokens=context)
    found = plan_layers(mesh, work, goal="latency" if streams == 1 else "throughput", lossy=lossy)
    report = {"model": model, **describe_plan(mesh, work, found, lossy=lossy)}
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print_plan(report)


def _print_plan(report: dict[str, Any]) -> None:
    from zse.cli.titled_tables import print_tables

    print_tables([_stages(report)])
    typer.echo(
        f"predicted: {report['tokens_per_second']:g} tok/s, {report['latency_ms']:g} ms a token, "
        f"{report['streams']} streams"
    )
    for reason in report["why"]:
        typer.echo(f"- {reason}")


def _stages(report: dict[str, Any]) -> Table:
    from zse.cli.titled_tables import Table
    from zse.units import memory_text

    return Table(
        title=f"plan of {report['model']}",
        columns=("node", "layers", "GPUs", "memory", "ms", "arrives as", "ms on the wire"),
        rows=[
            (
                stage["node"],
                f"{stage['first_layer']} to {stage['end_layer'] - 1}",
                str(stage["devices"]),
                memory_text(stage["memory_bytes"]),
                f"{stage['step_ms']:g}",
                stage["arrives_as"],
                f"{stage['arrival_ms']:g}",
            )
            for stage in report["stages"]
        ],
    )


@app.command("start")
def start(
    listen: Annotated[
        str, Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    name: Annotated[str, Option(help="Of this node, unlike all others.  [host-port]")] = "",
    advertise: Annotated[
        str, Option(metavar="HOST:PORT", help="Where others reach it.  [where it listens]")
    ] = "",
    join: Annotated[
        list[str] | None,
        Option(metavar="HOST:PORT", help="A node to be found by, where multicast does not reach."),
    ] = None,
    scout: Annotated[
        str, Option(metavar="HOST:PORT", help="Where nodes that --join this one ask for others.")
    ] = "",
    discovery: Annotated[
        bool, Option(help="Be found on this network; fronts with a list of nodes need none.")
    ] = True,
    model: Annotated[
        str, Option(metavar="MODEL", help="Where this node has the model.  [as the front names it]")
    ] = "",
    memory_gib: Annotated[
        float, Option(min=0, help="Memory that the mesh may have.  [most of what is available]")
    ] = 0.0,
    threads: Annotated[int, Option(min=0, help="Threads that compute.  [as many as are good]")] = 0,
    device: Annotated[
        str,
        Option(metavar="NAME", help="What computes: cpu, cuda for all GPUs, or cuda:N for one."),
    ] = "cpu",
    tensor_parallel: Annotated[
        int,
        Option(
            min=0,
            max=16,
            help="GPUs that share each layer; on a CPU, processes.  [as many as the plan says]",
        ),
    ] = 0,
    gpus: Annotated[str, Option(metavar="N,N", help="The GPUs that compute.  [of --device]")] = "",
) -> int:
    """Start a node, to compute the layers that it is assigned.

    A front end is `zse serve --mesh`. The first line on stdout says where the node listens. It
    reads ZSE_MESH_SECRET. Without a front end it holds no weights; when one leaves, it waits
    for the next.
    """
    from zse.mesh.serving import NodeStart, run_node
    from zse.settings import load_settings

    return run_node(
        load_settings(),
        NodeStart(
            listen=listen,
            name=name,
            advertised=advertise,
            join=tuple(join or ()),
            scout=scout,
            is_found=discovery,
            model=model,
            memory_gib=memory_gib,
            threads=threads,
            device=device,
            tensor_parallel=tensor_parallel,
            gpus=gpus,
        ),
        typer.echo,
    )


@app.command("status")
def status(
    mesh: Annotated[str, Option(metavar="WHERE", help="As `zse serve --mesh` takes it.")] = "auto",
    wait: Annotated[float, Option(min=0, max=60, help="Seconds to look for nodes.")] = 0.5,
    as_json: Json = False,
) -> None:
    """Show the nodes: memory, speed, layers, links. Running front ends are not disturbed.

    With --json the output is a file of nodes that `zse mesh plan` reads, under "plan".
    """
    from zse.cli.titled_tables import Table, print_tables
    from zse.mesh.finding import finder_of, secret_of
    from zse.mesh.surveying import survey
    from zse.settings import load_settings
    from zse.units import memory_text

    secret = secret_of(load_settings().serve.mesh)
    with finder_of(mesh, secret) as finder:
        report = survey(finder, secret, seconds=wait)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    nodes = Table(
        title="nodes",
        columns=("name", "address", "memory", "GB/s", "layers", "epoch"),
        rows=[
            (
                node["name"],
                node["address"],
                _of_each(node, memory_text(node["memory_bytes"])),
                _of_each(node, f"{node['bytes_per_second'] / 1e9:.1f}"),
                ", ".join(_layers(stage) for stage in node["stages"]) or "none",
                str(node["epoch"]),
            )
            for node in report["nodes"]
        ],
    )
    links = Table(
        title="links",
        columns=("from", "to", "ms", "Mbit/s"),
        rows=[
            (link["from"], link["to"], f"{link['ms']:.2f}", f"{link['mbit_per_s']:.0f}")
            for link in report["plan"]["links"]
        ],
    )
    print_tables([nodes, links])
    for problem in report["problems"]:
        typer.echo(f"- {problem}")


def _of_each(node: dict[str, Any], amount: str) -> str:
    """Return what a node has: of each of its devices, where it has several."""
    count = max(node["devices_of_a_layer"])
    return f"{count} x {amount}" if count > 1 else amount


def _layers(stage: dict[str, Any]) -> str:
    role = "" if stage["computes"] else " (standby)"
    return f"{stage['first_layer']} to {stage['end_layer'] - 1}{role}"
