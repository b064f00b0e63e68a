"""Writes docs/reference/*.md from the code: commands, settings, errors, routes, fields, models.

scripts/reference.py           write
scripts/reference.py --check   fail when a page is not what the code says
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

import typer
from typer.core import TyperGroup

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import zse  # noqa: E402
from scripts.reference_api import api_page  # noqa: E402
from scripts.reference_models import models_page  # noqa: E402
from scripts.reference_python import python_page  # noqa: E402
from scripts.reference_routes import routes_page  # noqa: E402
from zse import cli, errors, settings  # noqa: E402
from zse.deploy.registry import TARGETS, settings_of  # noqa: E402
from zse.option import options_of  # noqa: E402
from zse.route_options import RouteOptions  # noqa: E402
from zse.server_options import ServeOptions  # noqa: E402


def command_page() -> str:
    lines = ["# Commands", "", "Generated from the code by `scripts/reference.py`.", ""]
    context = typer.Context(cli.cli, info_name="zse", max_content_width=100, terminal_width=100)
    lines += ["```", cli.cli.get_help(context), "```", ""]
    return "\n".join([*lines, *helps_below(context)])


def helps_below(context: typer.Context) -> list[str]:
    """Return the help of every command below a group, the groups among them and their own too."""
    lines = []
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        child = typer.Context(command, info_name=name, parent=context)
        lines += [f"## {child.command_path}", "", "```", command.get_help(child), "```", ""]
        if isinstance(command, TyperGroup):
            lines += helps_below(child)
    return lines


def settings_page() -> str:
    names = ("options", "server_options", "server_groups")
    sources = ", ".join(f"`zse/{name}.py`" for name in names)
    lines = ["# Settings", "", f"Generated from {sources} and `zse/settings.py`.", ""]
    lines += [
        "A flag wins over a variable, a variable over `zse.toml` of the current folder, that over "
        "`~/.config/zse/zse.toml`; the [guide](../guides/serve.md#settings) tells more.",
        "",
    ]
    lines += ["| `zse.toml` | variable | flag | default | meaning |", "|---|---|---|---|---|"]
    flags = options_of(ServeOptions) | options_of(RouteOptions)
    for row in options_of(settings.Settings).values():
        if row.variables:
            key = f"`{row.key}`" if row.by_hand else ""
            variables = ", else ".join(f"`{name}`" for name in row.variables)
            default = f"`{row.default}`" if row.default or row.kind is bool else ""
            flag = f"`{row.flags[0]}`" if row.by_hand and row.key in flags else ""
            flag = "`MODEL`" if row.key == "model" else flag
            lines.append(f"| {key} | {variables} | {flag} | {default} | {row.meaning} |")
    return "\n".join([*lines, ""])


def deploy_page() -> str:
    lines = ["# Settings of deploy targets", ""]
    lines += ["Generated from `zse/deploy/targets`. `--set NAME=VALUE` gives one.", ""]
    for name, target in TARGETS.items():
        lines += [f"## {name}", "", f"Makes {target.summary}.", ""]
        settings = settings_of(name)
        if not settings:
            lines += ["It has no settings of its own.", ""]
            continue
        lines += ["| form | setting | meaning |", "|---|---|---|"]
        for item in settings:
            written, told = (text.replace("|", "\\|") for text in (item.written, item.told))
            lines.append(f"| {item.form or 'all'} | `{written}` | {told} |")
        lines.append("")
    return "\n".join(lines)


def errors_page() -> str:
    lines = ["# Errors", "", "Generated from `zse/errors.py`.", ""]
    lines += [
        "A command that fails writes `error:` and `hint:` to stderr and ends with the exit code. "
        "With `--json` the last line of stderr is",
        '`{"error": {"code", "exit_code", "message", "hint"}}` instead; `code` is the class in '
        "lower case, such as `not_found`.",
        "`ZSE_DEBUG=1` shows where an error came from. A wrong word on the command line is a "
        "UsageError; a defect is `unforeseen`, exit code 1.",
        "",
    ]
    lines += ["| class | exit code | HTTP | code | rule broken |", "|---|---|---|---|---|"]
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.ZSEError):
            rule = (value.__doc__ or "").strip().splitlines()[0]
            code = value.error_code or ""
            lines.append(f"| {name} | {value.exit_code} | {value.http_status} | {code} | {rule} |")
    return "\n".join([*lines, ""])


PAGE_MAKERS = {
    "cli.md": command_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "deploy.md": deploy_page,
    "routes.md": routes_page,
    "python.md": lambda: python_page(zse._LAZY),
    "api.md": api_page,
    "models.md": models_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = 0
    for name, make in PAGE_MAKERS.items():
        path, text = PAGES / name, make()
        if arguments.check:
            old = path.read_text() if path.exists() else ""
            diff = list(
                difflib.unified_diff(old.splitlines(), text.splitlines(), name, "code", lineterm="")
            )
            print("\n".join(diff), end="\n" if diff else "")
            stale += bool(diff)
        else:
            PAGES.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        print("error: docs/reference is stale; run scripts/reference.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
