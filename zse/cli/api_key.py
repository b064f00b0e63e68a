"""``zse api-key``: the keys that servers of this user ask for."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from msgspec.structs import asdict, replace
from typer import Argument, Option

from zse.cli.app import App, say
from zse.cli.parameters import Json
from zse.errors import UsageError
from zse.serve.access.key_file import KeyFile, no_such_key
from zse.serve.access.keys import MAX_LIMIT, MAX_WEIGHT, ApiKey, KeyTable, make_key
from zse.serve.access.opening import key_file_of
from zse.settings import Settings, load_settings

KeyName = Annotated[str, Argument(metavar="NAME", help="What the key is called.")]
AnyName = Annotated[str | None, Argument(metavar="NAME", help="One key; all without.")]
_NO_USE = {"requests_last_minute": 0, "tokens_last_minute": 0}
_TOO_MANY = 429

app = App(
    help="Create, list and revoke the API keys of servers. A running server takes changes over "
    "within a second; the keys are kept in ZSE_HOME."
)


@app.command("create")
def create(
    name: KeyName,
    scope: Annotated[
        Literal["inference", "metrics", "admin"],
        Option(help="What it opens; admin opens everything."),
    ] = "inference",
    rate_limit: Annotated[
        int, Option(min=0, max=MAX_LIMIT, help="Most requests in any minute.  [no limit]")
    ] = 0,
    tokens_per_minute: Annotated[
        int, Option(min=0, max=MAX_LIMIT, help="Most tokens, read and written.  [no limit]")
    ] = 0,
    expires: Annotated[
        str | None, Option(metavar="WHEN", help="30d, 12h, 90m, or a date as 2030-01-31.  [never]")
    ] = None,
    priority: Annotated[
        int, Option(min=-100, max=100, help="Of its requests, and the most they may ask for.")
    ] = 0,
    weight: Annotated[
        int, Option(min=1, max=MAX_WEIGHT, help="Share of the engine beside other keys.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Create a key and print it; it is shown only this once."""
    new = make_key(
        name,
        scope=scope,
        rate_limit=rate_limit,
        tokens_per_minute=tokens_per_minute,
        expires=None if expires is None else parse_moment(expires, now=time.time()),
        priority=priority,
        weight=weight,
    )
    file = _file()
    file.add(new.key)
    if as_json:
        typer.echo(json.dumps({"key": new.secret, **shown(new.key, now=time.time())}))
        return
    say(f"The key {name!r} for {scope}, shown this once; {file.path} holds its digest.")
    typer.echo(new.secret)


@app.command("list")
def list_keys(as_json: Json = False) -> None:
    """List the keys by name; the keys themselves are not stored."""
    table, now = _file().read(), time.time()
    if as_json:
        keys = [shown(key, now=now) for key in table.keys]
        typer.echo(json.dumps({"enabled": table.enabled, "keys": keys}))
        return
    row = "{:<20} {:<9} {:<8} {:>12} {:>12}  {:<16} {}"
    if table.keys:
        head = ("NAME", "SCOPE", "STATE", "REQUESTS/MIN", "TOKENS/MIN", "EXPIRES", "CREATED")
        typer.echo(row.format(*head).rstrip())
    for key in table.keys:
        limits = (key.rate_limit or "-", key.tokens_per_minute or "-")
        times = (_time(key.expires) if key.expires else "never", _time(key.created))
        typer.echo(row.format(key.name, key.scope, key.state(now), *limits, *times))
    if not table.keys:
        say("no keys: a server that only this machine reaches asks for none, any other makes one")
        return
    asks = "are asked for" if table.enabled else "are not asked for on this machine"
    say(f"{len(table.keys)} keys; they {asks}")


@app.command("delete")
def delete(name: KeyName, as_json: Json = False) -> None:
    """Delete a key; within a second its users get 401."""
    old = _file().update(name, lambda _: None)
    _tell(as_json, f"The key {name!r} is gone.", deleted=old.name)


@app.command("enable")
def enable(name: AnyName = None, as_json: Json = False) -> None:
    """Enable a key that was disabled.

    Without NAME programs on this machine are asked for keys again.
    """
    _switch(name, is_enabled=True)
    words = f"The key {name!r} lets in." if name else "Keys are asked for."
    _tell(as_json, words, name=name, enabled=True)


@app.command("disable")
def disable(name: AnyName = None, as_json: Json = False) -> None:
    """Disable a key; its users get 401.

    Without NAME programs on this machine are asked for none.

    A server that other machines reach asks for keys all the same, unless --public says that a gate
    in front of it does.
    """
    _switch(name, is_enabled=False)
    words = f"The key {name!r} lets nobody in."
    words = words if name else "Programs on this machine are asked for no key."
    _tell(as_json, words, name=name, enabled=False)


@app.command("reset")
def reset(name: KeyName, as_json: Json = False) -> None:
    """Reset the use of a key, so that it has its whole limits again."""
    _file().update(name, lambda key: replace(key, num_resets=key.num_resets + 1))
    _tell(as_json, f"The key {name!r} has its whole limits again.", reset=name)


@app.command("status")
def status(name: AnyName = None, as_json: Json = False) -> None:
    """Show what keys have used in the last minute.

    The figures come from the audit log of this user's servers.
    """
    settings, now = load_settings(), time.time()
    table = key_file_of(settings).read()
    if name is not None and table.find(name) is None:
        raise no_such_key(name)
    keys = [key for key in table.keys if name in (None, key.name)]
    used = _use_of(settings, now)
    rows = [{**shown(key, now=now), **used.get(key.name, _NO_USE)} for key in keys]
    if as_json:
        typer.echo(json.dumps(rows if name is None else rows[0]))
        return
    for key in rows:
        requests = _of_limit(key["requests_last_minute"], key["rate_limit"])
        tokens = _of_limit(key["tokens_last_minute"], key["tokens_per_minute"])
        typer.echo(f"{key['name']:<20} {key['state']:<8} {requests} requests, {tokens} tokens")


def _of_limit(used: int, limit: int) -> str:
    return f"{used} of {limit}" if limit else f"{used}"


def _use_of(settings: Settings, now: float) -> dict[str, dict[str, int]]:
    """Return what each key has used of its last minute, by its name."""
    from zse.serve.audit.entry import moment_of
    from zse.serve.audit.opening import audit_files
    from zse.serve.audit.query import Wanted, find

    since = moment_of(datetime.fromtimestamp(now - 60, UTC))
    found: dict[str, dict[str, int]] = {}
    for entry in find(audit_files(settings), Wanted(since=since)):
        if entry.api_key_name is not None and entry.status_code != _TOO_MANY:
            use = found.setdefault(entry.api_key_name, dict(_NO_USE))
            use["requests_last_minute"] += 1
            use["tokens_last_minute"] += entry.total_tokens
    return found


def _file() -> KeyFile:
    return key_file_of(load_settings())


def _switch(name: str | None, *, is_enabled: bool) -> None:
    if name is not None:
        _file().update(name, lambda key: replace(key, enabled=is_enabled))
        return

    def edit(table: KeyTable) -> KeyTable:
        return replace(table, enabled=is_enabled)

    _file().change(edit)


def _tell(as_json: bool, words: str, **facts: Any) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        say(words)


def parse_moment(text: str, *, now: float) -> int:
    """Return Unix seconds for a span from now or a date; days end in UTC.

    Raises:
        UsageError: The text is neither, or has passed.
    """
    from zse.cli.cache_keep import parse_seconds

    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        moment = now + parse_seconds(text)
    else:
        moment = (day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp()
    if moment <= now:
        raise UsageError(f"--expires {text}: that has passed")
    return int(moment)


def shown(key: ApiKey, *, now: float) -> dict[str, Any]:
    """Return what may be shown of a key: everything but its digest."""
    facts = asdict(key) | {"state": key.state(now)}
    del facts["sha256"], facts["num_resets"]
    return facts


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
