"""``zse audit``: who asked the servers of this user what, and what it cost."""

from __future__ import annotations

import csv
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from typer import Option

from zse.cli.app import App, say
from zse.cli.parameters import Force, Json
from zse.printable import printable
from zse.serve.audit.entry import FIELDS, encode_line, moment_of
from zse.serve.audit.opening import audit_files
from zse.serve.audit.query import Wanted, find, newest, summarize_files
from zse.settings import load_settings
from zse.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zse.serve.audit.entry import AuditEntry
    from zse.serve.audit.files import AuditFiles

app = App(
    invoke_without_command=True,
    help="Show who asked servers what: sums, requests, files. A running server adds to the log "
    "(--audit-dir, else audit in ZSE_HOME).",
)
# -h is taken by the hours, as people know it.
_LONG_HELP = {"help_option_names": ["--help"]}
Hours = Annotated[float, Option("--hours", "-h", min=0.01, help="How far back.")]
Limit = Annotated[int, Option("--limit", "-l", min=1, help="Most entries.")]
Key = Annotated[str, Option("--key", "-k", metavar="NAME", help="Of this API key.")]
PathBegin = Annotated[str, Option("--path", "-p", help="Whose path begins so.")]
Status = Annotated[str, Option("--status", "-s", metavar="CODE", help="429, or 5xx.")]
Since = Annotated[str, Option(metavar="WHEN", help="Not before: 2h, 7d, or 2030-01-31T12:00.")]
Until = Annotated[str, Option(metavar="WHEN", help="Before that.")]


@app.callback()
def root(context: typer.Context) -> None:
    """Without a command, sum up the last day."""
    if context.invoked_subcommand is None:
        summary()


@app.command("summary", context_settings=_LONG_HELP)
def summary(hours: Hours = 24.0, as_json: Json = False) -> None:
    """Show sums of the last hours."""
    since = moment_of(datetime.now(UTC) - timedelta(hours=hours))
    sums = summarize_files(_files(), Wanted(since=since))
    if as_json:
        typer.echo(json.dumps({"hours": hours, **sums}))
        return
    latency = sums["latency_ms"]
    typer.echo(f"{sums['total_requests']} requests in {hours:g} h, {sums['total_tokens']} tokens")
    typer.echo(f"{sums['errors']} errors, {sums['rate_limited']} of them over a limit")
    typer.echo(f"latency {latency['mean']} ms, p50 {latency['p50']}, p95 {latency['p95']}")
    for what in ("status", "key", "path", "model"):
        for name, count in sums[f"by_{what}"].items():
            typer.echo(f"{what:<7} {count:>9}  {printable(name)}")


@app.command("recent")
def recent(limit: Limit = 20, as_json: Json = False) -> None:
    """Show the last requests, the newest first."""
    _show(newest(_files(), Wanted(), limit), as_json=as_json)


@app.command("query")
def query(
    key: Key = "",
    path: PathBegin = "",
    status: Status = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """Show the last requests that match, the newest first."""
    wanted = _wanted(key, path, status, since, until)
    _show(newest(_files(), wanted, limit), as_json=as_json)


@app.command("export")
def export(
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="A file.  [stdout]")
    ] = None,
    form: Annotated[Literal["jsonl", "csv"], Option("--format", "-f", help="As what.")] = "jsonl",
    key: Key = "",
    path: PathBegin = "",
    status: Status = "",
    since: Since = "",
    until: Until = "",
    force: Force = False,
) -> None:
    """Write requests as JSON Lines or CSV, the oldest first."""
    from zse.store.local import LocalWriter
    from zse.store.overwrite import check_output

    entries = find(_files(), _wanted(key, path, status, since, until))
    if output is None:
        _write(entries, form, sys.stdout.write)
        return
    check_output(output, load_settings(), force=force)
    with LocalWriter(output) as file:
        count = _write(entries, form, lambda text: file.write(text.encode()))
    say(f"{count} requests in {output}")


@app.command("clear")
def clear(
    is_all: Annotated[bool, Option("--all", help="What is packed away, too.")] = False,
    as_json: Json = False,
) -> None:
    """Delete the entries of the current file, or all."""
    files = _files()
    try:
        files.clear(packed_too=is_all)
    except OSError as error:
        from zse.store.local import translated_os_error

        raise translated_os_error(error, files.path, "clear") from error
    if as_json:
        typer.echo(json.dumps({"cleared": True, "all": is_all}))
    else:
        say(f"{files.folder} is empty" if is_all else f"{files.path} is empty")


@app.command("stats")
def stats(as_json: Json = False) -> None:
    """Show where the log is stored and how large it is."""
    files = _files()
    size = files.size()
    facts = {"folder": str(files.folder), **vars(size)}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"{files.folder}")
    typer.echo(f"current file  {size_text(size.file_bytes)}")
    typer.echo(f"packed files  {size.num_packed}, {size_text(size.packed_bytes)}")


def _files() -> AuditFiles:
    return audit_files(load_settings())


def _wanted(key: str, path: str, status: str, since: str, until: str) -> Wanted:
    return Wanted(
        since=_moment(since), until=_moment(until), key=key, path=path, status=status.lower()
    )


def _moment(text: str) -> str:
    """Return a time as entries have it: a date, or so long ago.

    Raises:
        UsageError: The text is neither.
    """
    from zse.cli.cache_keep import parse_seconds

    if not text:
        return ""
    try:
        return moment_of(datetime.fromisoformat(text))
    except ValueError:
        return moment_of(datetime.now(UTC) - timedelta(seconds=parse_seconds(text)))


def _show(entries: Sequence[AuditEntry], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([msgspec.to_builtins(entry) for entry in entries]))
        return
    for one in entries:
        who = one.api_key_name or "-"
        call = printable(f"{one.method} {one.path}", instead="?")
        cost = f"{one.latency_ms:>9.1f} ms {one.total_tokens:>7} tokens"
        typer.echo(f"{one.timestamp}  {one.status_code:>3} {cost}  {who:<16} {call}")


def _write(entries: Iterable[AuditEntry], form: str, write: Callable[[str], object]) -> int:
    """Write entries; return how many."""
    count = 0
    table = csv.writer(_Lines(write))
    if form == "csv":
        table.writerow(FIELDS[:-1])  # bodies are for programs
    for entry in entries:
        count += 1
        if form == "csv":
            table.writerow(_cell(getattr(entry, name)) for name in FIELDS[:-1])
        else:
            write(encode_line(entry).decode())
    return count


class _Lines:
    """What ``csv`` writes to."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.write = write


def _cell(value: Any) -> Any:
    """Return what a cell may hold: clients choose some of it, and spreadsheets compute formulas."""
    if value is msgspec.UNSET:
        return None
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
