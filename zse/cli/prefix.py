"""``zse prefix``: stores the KV of system prompts in a model's file, so no start computes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zse.cli.app import App, say
from zse.cli.parameters import Json
from zse.cli.table_flags import with_flags_of
from zse.errors import NotFoundError, UsageError
from zse.options import KV_DTYPES

if TYPE_CHECKING:
    from zse.engine.loading import LoadedModel
    from zse.engine.prefixes.adding import StoredPrefix
    from zse.serve.conversation import OfferedTool
    from zse.server_options import ServeOptions

File = Annotated[Path, Argument(metavar="FILE", help="A .zse file of this machine.")]

app = App(
    help="Store system prompts in a .zse file, computed beforehand, so that no server computes "
    "them again."
)


@app.command("add")
@with_flags_of(
    [
        *("device", "threads", "kernels", "max_context"),
        *("exact_activations", "prefill_precision", "deterministic"),
    ]
)
def add(
    *,
    file: File,
    system: Annotated[
        Path | None, Option(metavar="PROMPT.txt", help="The system prompt, in UTF-8.")
    ] = None,
    tools: Annotated[
        Path | None,
        Option(metavar="TOOLS.json", help="The tools that come with it, as a request's `tools`."),
    ] = None,
    text: Annotated[
        Path | None,
        Option(metavar="TEXT.txt", help="Instead of both: how prompts of /v1/completions begin."),
    ] = None,
    name: Annotated[str, Option(help="What it is called; one of that name is replaced.")] = (
        "system"
    ),
    kv: Annotated[
        str, Option("--kv", metavar="TYPE", help="As the server's --kv-dtype will be.")
    ] = "auto",
    given: dict[str, Any],
    as_json: Json = False,
) -> None:
    """Compute a prompt here and store its KV in FILE.

    Servers can use it on the same kind of device (CPU or GPU) and with the same --kv-dtype. A
    file can hold one for each; a server takes the one that fits.
    """
    from zse.engine.loading import load_model
    from zse.engine.prefixes.adding import check_name, computed_prefix
    from zse.format.append import append_section
    from zse.option import with_flags, with_values
    from zse.settings import load_settings

    check_name(name)
    _check_prompt(system, tools, text)
    _check_kv(kv)
    settings = load_settings()
    serve = with_flags(settings.serve, given)
    own = {"kv_dtype": kv, "max_sequences": 1, "prefix_store": "", "prefix_key_file": ""}
    load = with_values(serve.load, own)
    offered = _tools_of(tools)
    model = load_model(_local(file), load, settings)
    try:
        if text is not None:
            from zse.serve.prompt_prefix import text_prefix

            token_ids = text_prefix(model, _read(text))
        else:
            token_ids = _of_chat(model, system, offered, serve)
        section, data = computed_prefix(model, token_ids, load.device, name)
    finally:
        model.close()
    append_section(file, section, data)
    facts = {"name": name, "section": section, "tokens": len(token_ids), "bytes": len(data)}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    say(f"{len(token_ids)} tokens begin alike; {len(data)} bytes of their KV are in {file}")


def _check_prompt(system: Path | None, tools: Path | None, text: Path | None) -> None:
    if (system is None and tools is None) == (text is None):
        raise UsageError(
            "name a prompt: --system, with --tools or without, or --text",
            hint="See `zse prefix add --help`.",
        )


def _check_kv(kv: str) -> None:
    if kv not in KV_DTYPES:
        raise UsageError(
            f"--kv {kv!r} is none of {', '.join(KV_DTYPES)}",
            hint="Give what the server's --kv-dtype will be.",
        )


@app.command("list")
def list_prefixes(file: File, as_json: Json = False) -> None:
    """List the prefixes in FILE, and check their digests."""
    from zse.engine.prefixes.adding import stored_prefixes
    from zse.format.reader import ZSEReader

    with ZSEReader(_local(file)) as reader:
        found = stored_prefixes(reader)
    if as_json:
        typer.echo(json.dumps([_shown(one) for one in found]))
        return
    row = "{:<20} {:>8} {:>14}  {:<8} {}"
    if found:
        typer.echo(row.format("NAME", "TOKENS", "BYTES", "ZSE", "KV"))
    for one in found:
        version = "" if one.binding is None else one.binding.zse
        what = one.problem if one.binding is None else one.binding.layout
        typer.echo(row.format(one.name, one.num_tokens, one.length_bytes, version, what))
    say(f"{len(found)} prefixes")


@app.command("remove")
def remove(
    file: File,
    name: Annotated[str, Argument(metavar="NAME", help="The prefix, of every kind of device.")],
    as_json: Json = False,
) -> None:
    """Remove a prefix from FILE. Stop the servers that have the file open first."""
    from zse.engine.prefixes.keeper import SECTIONS
    from zse.format.append import remove_section
    from zse.format.reader import ZSEReader

    with ZSEReader(_local(file)) as reader:
        names = [one.name for one in reader.header.sections]
    found = [one for one in names if one.rpartition("/")[0] == f"{SECTIONS}{name}"]
    if not found:
        raise NotFoundError(f"{file} has no prefix {name!r}", hint=f"See zse prefix list {file}.")
    for section in reversed(found):  # from the end of the file, which then becomes shorter
        remove_section(file, section)
    if as_json:
        typer.echo(json.dumps({"removed": found}))
    else:
        say(f"The prefix {name!r} is gone.")


def _local(file: Path) -> Path:
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}", hint="Check the path.")
    return file


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}",
            hint="Name a file with the prompt, in UTF-8, that this user may read.",
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8: byte {error.start}", hint="Convert it: iconv -t UTF-8."
        ) from None


def _of_chat(
    model: LoadedModel, system: Path | None, tools: tuple[OfferedTool, ...], options: ServeOptions
) -> list[int]:
    from zse.serve.prompt_prefix import system_prefix

    # A file ends in a line's end; what a program sends usually does not.
    words = "" if system is None else _read(system).removesuffix("\n")
    return system_prefix(model, words, tools, options)


def _tools_of(path: Path | None) -> tuple[OfferedTool, ...]:
    if path is None:
        return ()
    from zse.serve.conversation import OfferedTool
    from zse.serve.http.fields import convert
    from zse.serve.openai.protocol import Tool

    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise UsageError(
            f"{path} is not JSON: {error}", hint="Write what a request's `tools` is."
        ) from None
    if not isinstance(value, list) or not value:
        raise UsageError(
            f"{path} holds no list of tools", hint="Write what a request's `tools` is."
        )
    found = [convert(each, Tool, where="tools").function for each in value]
    return tuple(
        OfferedTool(
            name=each.name,
            description=each.description or "",
            parameters=each.parameters,
            is_strict=bool(each.strict),
        )
        for each in found
    )


def _shown(one: StoredPrefix) -> dict[str, Any]:
    binding = one.binding
    return {
        "name": one.name,
        "section": one.section,
        "tokens": one.num_tokens,
        "bytes": one.length_bytes,
        "zse": None if binding is None else binding.zse,
        "layout": None if binding is None else binding.layout,
        "deterministic": None if binding is None else binding.is_deterministic,
        "computed_by": None if binding is None else binding.computed_by,
        "problem": one.problem or None,
    }
