"""``zse cache``: lists what zse keeps in its cache folder, and removes it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zse.cli.app import App, say
from zse.cli.parameters import Json
from zse.settings import load_settings
from zse.store.cache_kinds import KINDS, MODELS
from zse.units import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.store.cache_kinds import CacheItem, Kind

_KINDS_TEXT = "\n".join(f"  {kind.name:<10} {kind.what}" for kind in KINDS)
_EPILOG = f"\b\nKinds:\n{_KINDS_TEXT}"
if TYPE_CHECKING:
    KindName = str
else:
    KindName = StrEnum("KindName", {kind.name: kind.name for kind in KINDS})
Kinds = Annotated[
    list[KindName] | None, Argument(metavar="KIND", show_choices=False, help="All without.")
]

app = App(help="Show or empty the cache folder (ZSE_CACHE_DIR, at most ZSE_CACHE_GIB).")


@app.command("ls", epilog=_EPILOG)
def list_items(kinds: Kinds = None, as_json: Json = False) -> None:
    """List what the cache holds, used longest ago first.

    Models come one by one, other kinds as one line each unless they are named.
    """
    from zse.store.cache_items import find_items, is_item_used
    from zse.store.cache_use import TAG_NAME, is_tagged

    settings = load_settings()
    cache_dir, limit_bytes = settings.cache_dir, settings.cache_bytes
    items = find_items(cache_dir, _chosen(kinds))
    total_bytes = sum(item.size_bytes for item in items)
    if as_json:
        report = {
            "folder": str(cache_dir),
            "limit_bytes": limit_bytes,
            "size_bytes": total_bytes,
            "items": [
                _as_json(item) | {"is_in_use": is_item_used(cache_dir, item)} for item in items
            ],
        }
        typer.echo(json.dumps(report, sort_keys=True))
        return
    for item, name in _rows(items, kinds or ()):
        used = datetime.fromtimestamp(item.used_seconds, UTC).strftime("%Y-%m-%d %H:%M")
        state = "" if item.is_whole else "unfinished"
        state = "in use" if is_item_used(cache_dir, item) else state
        size = size_text(item.size_bytes)
        typer.echo(f"{item.kind:<10} {size:>10}  {used}  {state:<10}  {name}")
    limit = f" of {size_text(limit_bytes)}" if limit_bytes else ""
    stays = "" if is_tagged(cache_dir) or not items else f" (no {TAG_NAME}: nothing is removed)"
    total = f"{len(items)} items, {size_text(total_bytes)}{limit}"
    say(f"{total} in {cache_dir}{stays}")


@app.command("clean", epilog=_EPILOG)
def clean(
    kinds: Kinds = None,
    older_than: Annotated[
        str | None, Option(metavar="TIME", help="Only what was not used for: 30d, 12h, 90m.")
    ] = None,
    keeps: Annotated[
        list[str] | None,
        Option(
            "--keep",
            metavar="WHAT",
            help="Keep a KIND, a name (or a part of it), what was used within a time (7d), or "
            "the latest things up to a size (20GB). May be given again.",
        ),
    ] = None,
    is_all: Annotated[
        bool, Option("--all", help="Also what cannot be had again: see Kinds.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would go; remove nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove what is not in use: everything, or what the arguments say.

    Notes of unfinished pushes and tuning tables stay, unless they are named or --all is given.
    """
    from zse.cli.cache_keep import Keep, not_kept, parse_keep, parse_seconds
    from zse.store.cache_items import find_items, is_item_used, remove_idle_locks, remove_item
    from zse.store.cache_use import check_tagged, usable

    cache_dir, now = load_settings().cache_dir, time.time()
    rules = [parse_keep(text, now=now) for text in keeps or ()]
    if older_than is not None:
        rules.append(Keep(used_since=now - parse_seconds(older_than)))
    chosen = _chosen(kinds) if kinds or is_all else [kind for kind in KINDS if not kind.is_work]
    candidates = not_kept(find_items(cache_dir, chosen), rules)
    if candidates:
        check_tagged(cache_dir)
    removed: list[CacheItem] = []
    used: list[CacheItem] = []
    with usable(cache_dir):
        for item in candidates:
            is_used = is_item_used(cache_dir, item)
            is_removed = not is_used and (dry_run or remove_item(cache_dir, item))
            (removed if is_removed else used).append(item)
        if not dry_run:
            remove_idle_locks(cache_dir)
    kept = find_items(cache_dir)
    report = {
        "removed": [_as_json(item) for item in removed],
        "in_use": [_as_json(item) for item in used],
        "freed_bytes": sum(item.size_bytes for item in removed),
        "kept": len(kept) - (len(removed) if dry_run else 0),
        "is_dry_run": dry_run,
    }
    if as_json:
        typer.echo(json.dumps(report, sort_keys=True))
        return
    _say_cleaned(removed, used, report)


def _say_cleaned(
    removed: Sequence[CacheItem], used: Sequence[CacheItem], report: dict[str, Any]
) -> None:
    word = "would remove" if report["is_dry_run"] else "removed"
    for kind in KINDS:
        items = [item for item in removed if item.kind == kind.name]
        if items:
            size = size_text(sum(item.size_bytes for item in items))
            typer.echo(f"{word}: {kind.name}, {len(items)} items, {size}")
    for item, name in _rows(used, ()):
        typer.echo(f"in use, kept: {item.kind}, {name}")
    freed = size_text(report["freed_bytes"])
    typer.echo(f"{word}: {len(removed)} items, {freed}; kept: {report['kept']}")


def _chosen(names: Sequence[str] | None) -> list[Kind]:
    return [kind for kind in KINDS if not names or kind.name in names]


def _rows(items: Sequence[CacheItem], named: Sequence[str]) -> list[tuple[CacheItem, str]]:
    """Return what a person reads: models and kinds that were named one by one, others summed."""
    rows: list[tuple[CacheItem, str]] = []
    for kind in KINDS:
        found = [item for item in items if item.kind == kind.name]
        if kind is MODELS or kind.name in named:
            rows += [(item, item.name) for item in found]
        elif found:
            size_bytes = sum(item.size_bytes for item in found)
            rows.append((replace(found[-1], size_bytes=size_bytes), f"{len(found)} items"))
    return sorted(rows, key=lambda row: row[0].used_seconds)


def _as_json(item: CacheItem) -> dict[str, object]:
    return {**asdict(item), "path": str(item.path)}
