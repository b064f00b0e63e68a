"""The models that a server may hold, as its command line names them.

Nothing is opened here: what is wrong with a file is told to who asks for its model, and at the
start for the model that the server begins with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.models.resolve import SUFFIX
from zse.serve.admin.places import Folder, PlacedModel
from zse.serve.load import model_name_of
from zse.serve.models import DEFAULT_ALIAS
from zse.server_options import ServeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.settings import Settings


def with_start_model(settings: Settings) -> Settings:
    """Return settings whose model is the one that a server with a roster begins with.

    Raises:
        UsageError: As ``roster_of``; or a model is pinned where none may leave.
    """
    options = settings.serve
    if options.fleet.pins and not options.fleet.is_wanted:
        raise UsageError(
            f"--pin names {options.fleet.pins[0]!r}, and no models come and go",
            hint="Name the models by --models.",
        )
    if not options.fleet.models:
        return settings
    first = roster_of(options)[0]
    options = replace(options, model=first.reference, served_model_name=first.name)
    return replace(settings, serve=options)


def roster_of(options: ServeOptions) -> tuple[PlacedModel, ...]:
    """Return the models of ``--models``, the one that the server begins with first.

    That is MODEL, where it is given, else the first that is pinned, else the first.

    Raises:
        UsageError: There is no such file or folder, two have one name, or a pin is none of them.
    """
    found: dict[str, PlacedModel] = {}
    for placed in _named(options):
        _refuse_twins(found.setdefault(placed.name, placed), placed)
    if not found:
        raise UsageError(
            "--models names a folder without .zse files",
            hint="Name a folder with .zse files, or NAME=PATH. Links that lead out of a folder do "
            "not count.",
        )
    _check_pins(options, found)
    first = _first(options, found)
    _refuse_twins(found.get(first.name, first), first)
    return first, *(placed for placed in found.values() if placed != first)


def _refuse_twins(one: PlacedModel, other: PlacedModel) -> None:
    if one.reference != other.reference:
        raise UsageError(
            f"--models has two models named {one.name!r}: {one.reference} and {other.reference}",
            hint="Give one of them another name: NAME=PATH.",
        )


def _named(options: ServeOptions) -> Iterator[PlacedModel]:
    if not options.fleet.models:
        yield _start_model(options)
    for text in options.fleet.models:
        yield from _models_of(text)


def _models_of(text: str) -> Iterator[PlacedModel]:
    name, separator, reference = text.partition("=")
    if not separator:
        name, reference = "", text
    path = Path(reference).expanduser()
    if not name and path.is_dir() and not (path / "config.json").is_file():
        for model in Folder(path).listed():
            if model.reference.endswith(SUFFIX):
                yield replace(model, name=_allowed(model_name_of(model.reference)))
        return
    name = _allowed(name or model_name_of(reference))
    is_path = reference.endswith(SUFFIX) and "://" not in reference
    if not (path.is_file() if is_path else path.exists() or _may_be_far(reference)):
        raise UsageError(
            f"--models names {reference}, which is not there",
            hint="Name a folder with .zse files, a file, or NAME=PATH.",
        )
    yield PlacedModel(name=name, reference=str(path) if is_path else reference)


def _may_be_far(reference: str) -> bool:
    """Whether what is no file here may be a built-in model, an address or a name of the hub."""
    return not reference.startswith(("/", "./", "../", "~"))


def _allowed(name: str) -> str:
    """Return a name that requests can ask for, also one that a file of a folder has."""
    if name == DEFAULT_ALIAS or not name.isprintable():
        raise UsageError(f"--models names a model {name!r}", hint="Give it another name.")
    return name


def _check_pins(options: ServeOptions, found: dict[str, PlacedModel]) -> None:
    pins, most = set(options.fleet.pins), options.fleet.max_resident
    if unknown := sorted(pins - found.keys()):
        raise UsageError(
            f"--pin names {unknown[0]!r}, which is no model of --models",
            hint=f"Name one of {', '.join(found)}.",
        )
    if most and len(pins) >= most and len(found) > len(pins):
        raise UsageError(
            f"{len(pins)} pinned models leave no room for others of --max-resident {most}",
            hint="Pin fewer, or raise --max-resident.",
        )


def _first(options: ServeOptions, found: dict[str, PlacedModel]) -> PlacedModel:
    start, is_given = _start_model(options), options.model != ServeOptions().model
    if found.get(start.name) == start:  # chosen before
        return start
    if is_given:
        asked = (one for one in found.values() if options.model in (one.name, one.reference))
        return next(asked, start)
    pinned = next((found[name] for name in options.fleet.pins), None)
    return pinned or next(iter(found.values()))


def _start_model(options: ServeOptions) -> PlacedModel:
    name = options.served_model_name or model_name_of(options.model)
    return PlacedModel(name=name, reference=options.model)
