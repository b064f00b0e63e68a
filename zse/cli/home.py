"""``zse`` without a command: this machine, models that fit it, running servers, a first step."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from zse import __version__
from zse.cli.running import DEFAULT_URL, StatsClient, UnreachableError, answers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.device.survey import GpuState

_BANNER = r"""
  ____ ___ ___
 |_ / __| __|   an LLM endpoint that was asleep
  / /\__ \ _|    answers in under a second
 /___|___/___|   zse {version}
"""
_BANNER_COLUMNS = 50
"""Which it takes; a narrower terminal would break its lines."""
_SCHEME = "int4"


def show_home() -> None:
    """Say what is here; at a terminal, ask for a model and talk to it."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if is_terminal:
        is_wide = shutil.get_terminal_size().columns >= _BANNER_COLUMNS
        banner = _BANNER.format(version=__version__).strip("\n")
        typer.echo(banner if is_wide else f"zse {__version__}")
        typer.echo()
    for line in _lines():
        typer.echo(line)
    typer.echo(
        "\nzse chat tiny talks to the built-in model, zse serve tiny serves it.\n"
        "zse --help lists the commands, zse doctor looks for what is wrong."
    )
    if is_terminal:
        _offer_chat()


def _lines() -> Iterator[str]:
    from zse.device.probe import probe
    from zse.device.survey import survey_cuda
    from zse.units import memory_text

    machine, gpus = probe(), survey_cuda().gpus
    yield (
        f"cpu      {machine.cpu_model}, {machine.physical_cores} cores, "
        f"{memory_text(machine.available_memory_bytes)} of "
        f"{memory_text(machine.total_memory_bytes)} available"
    )
    for gpu in gpus:
        yield _gpu_line(gpu)
    yield f"fits     {_largest(machine.available_memory_bytes, gpus)}"
    yield f"running  {_running()}"


def _gpu_line(gpu: GpuState) -> str:
    from zse.units import memory_text

    info = gpu.info
    state = gpu.problem.message if gpu.problem else f"{memory_text(info.free_bytes)} free"
    return f"gpu {info.ordinal}    {info.name}, {memory_text(info.total_bytes)}, {state}"


def _largest(available_bytes: int, gpus: tuple[GpuState, ...]) -> str:
    """Name the largest known model that each kind of memory here holds in four bits."""
    from zse.cli.hardware_report import well_known_estimates

    places = [("the CPU", available_bytes, False)]
    usable = [gpu.info.free_bytes for gpu in gpus if gpu.problem is None]
    if usable:
        places.insert(0, ("a GPU", max(usable), True))
    said = []
    for place, free_bytes, on_gpu in places:
        sizes = {
            estimate.total_bytes: model
            for (model, scheme), estimate in well_known_estimates(on_gpu=on_gpu).items()
            if scheme == _SCHEME and estimate.total_bytes <= free_bytes
        }
        said.append(f"{sizes[max(sizes)] if sizes else 'none of the known models'} on {place}")
    return f"up to {' and '.join(said)} ({_SCHEME}; zse models list has all names)"


def _running() -> str:
    """Say what the server at the usual port does; another process's port is not asked twice."""
    if not answers(DEFAULT_URL):
        return f"no server at {DEFAULT_URL} (zse serve MODEL starts one)"
    client = StatsClient(DEFAULT_URL)
    names = "a server"
    with suppress(UnreachableError):
        names = ", ".join(model["name"] for model in client.stats()["models"]) or names
    client.close()
    return f"{names} at {DEFAULT_URL}/dashboard (zse top, zse chat --url {DEFAULT_URL})"


def _offer_chat() -> None:
    from zse.cli.chat import open_here, talk
    from zse.models.builtin import BUILTIN_MODELS

    try:
        name = input(f"\nModel to talk to [{next(iter(BUILTIN_MODELS))}; Ctrl-D leaves]: ").strip()
    except EOFError:
        typer.echo()
        return
    talk(open_here(name or next(iter(BUILTIN_MODELS)), {}), {})
