"""``zse cache``: what was fetched and is kept, and how to be rid of it."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime

import click

from zse.cli.transfer_display import size_text
from zse.settings import load_settings

_DAY_SECONDS = 86400.0


def _finite(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    """Refuse "nan" and "inf", which a range of numbers lets through."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of days or GiB.")
    return value


@click.group(name="cache")
def command() -> None:
    """Show or empty the cache of fetched models (ZSE_CACHE_DIR, at most ZSE_CACHE_GIB)."""


@command.command(name="ls")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_entries(as_json: bool) -> None:
    """List what the cache holds, used longest ago first."""
    from zse.store.cache import GIBIBYTE, Cache, entry_json

    settings = load_settings()
    cache = Cache(settings.cache_dir)
    entries = cache.entries()
    rows = [{**entry_json(entry), "is_in_use": cache.is_in_use(entry)} for entry in entries]
    total_bytes = sum(entry.size_bytes for entry in entries)
    if as_json:
        report = {
            "folder": str(cache.folder),
            "limit_bytes": int(settings.cache_gib * GIBIBYTE),
            "size_bytes": total_bytes,
            "entries": rows,
        }
        click.echo(json.dumps(report, sort_keys=True))
        return
    for entry, row in zip(entries, rows, strict=True):
        used = datetime.fromtimestamp(entry.used_seconds, UTC).strftime("%Y-%m-%d %H:%M")
        state = "in use" if row["is_in_use"] else "" if entry.is_whole else "unfinished"
        click.echo(f"{entry.size_bytes:>15}  {used}  {state:<10}  {entry.url}")
    limit = f" of {settings.cache_gib:g} GiB" if settings.cache_gib else ""
    click.echo(f"{len(entries)} files, {size_text(total_bytes)}{limit} in {cache.folder}", err=True)


@command.command(name="clean")
@click.option(
    "--to-gib", type=click.FloatRange(min=0), callback=_finite, help="Keep this much, used last."
)
@click.option(
    "--older-than-days",
    type=click.FloatRange(min=0),
    callback=_finite,
    help="Keep what was used since then.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def clean(to_gib: float | None, older_than_days: float | None, as_json: bool) -> None:
    """Remove what is not in use: everything, or what the options do not keep."""
    from zse.store.cache import GIBIBYTE, Cache, entry_json

    cache = Cache(load_settings().cache_dir)
    before = time.time() - older_than_days * _DAY_SECONDS if older_than_days else None
    limit_bytes = int((to_gib or 0) * GIBIBYTE)
    removed = cache.shrink(limit_bytes, used_before=before)
    kept = len(cache.entries())
    freed_bytes = sum(entry.size_bytes for entry in removed)
    if as_json:
        report = {
            "removed": [entry_json(entry) for entry in removed],
            "freed_bytes": freed_bytes,
            "kept": kept,
        }
        click.echo(json.dumps(report, sort_keys=True))
        return
    click.echo(f"removed: {len(removed)} files, {size_text(freed_bytes)}; kept: {kept}")
