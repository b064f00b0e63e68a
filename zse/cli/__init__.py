"""The command line: one file per command, imported when the command runs.

``main`` is the one place where errors become exit codes and words on stderr.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from zse import __version__
from zse.cli.app import HELP_NAMES, App, command_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer._click import Command, HelpFormatter
    from typer._click.shell_completion import CompletionItem

# name -> (module, section, help). The help is said here so that `zse --help` imports no command.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "convert": ("convert", "Models", "Turn a Hugging Face checkpoint into one .zse file."),
    "quantize": ("convert", "Models", "Alias of convert."),
    "export": ("export", "Models", "Write a .zse file as a checkpoint that others load."),
    "inspect": ("inspect", "Models", "Show what a .zse or GGUF file holds; check its digests."),
    "info": ("info", "Models", "Show a model's size, layers, memory and the smallest GPU for it."),
    "fit": ("fit", "Models", "Plan a GPU: how many copies it holds, or whether a mix fits."),
    "models": ("models", "Models", "List, search, check and download known open models."),
    "eval": ("eval", "Models", "Measure what quantization cost: perplexity, divergence."),
    "prefix": ("prefix", "Models", "Store system prompts in a .zse file, computed beforehand."),
    "push": ("push", "Models", "Copy a file to object storage."),
    "pull": ("pull", "Models", "Copy an object to a file: s3://, hf://, https://."),
    "ls": ("ls", "Models", "List objects in storage, or unfinished uploads."),
    "serve": ("serve", "Serve", "Serve a model: OpenAI and Anthropic APIs, playground, dashboard."),
    "route": ("route", "Serve", "Put one address in front of many servers."),
    "mesh": ("mesh", "Serve", "Run one model on several machines together."),
    "api-key": ("api_key", "Serve", "Create, list and revoke API keys."),
    "mcp": ("mcp", "Serve", "Offer a server's models to MCP clients, over stdio."),
    "audit": ("audit", "Serve", "Show who asked servers what, and what it cost."),
    "config": ("config", "Serve", "Show every option, its value and where it was set."),
    "chat": ("chat", "Serve", "Chat with a model in the terminal."),
    "top": ("top", "Serve", "Show what a server is doing, live."),
    "benchmark": ("benchmark", "Serve", "Measure prefill and decode speed, memory, first token."),
    "cold-start": ("cold_start", "Serve", "Measure how long an image or a model takes to start."),
    "cost": ("cost", "Ship", "Compare what platforms cost a month, with and without sleep."),
    "build-image": ("build_image", "Ship", "Write an OCI image around a model, without Docker."),
    "image": ("image", "Ship", "Inspect an image, verify it, push it to a registry."),
    "deploy": ("deploy", "Ship", "Deploy an image to a platform; shows a plan first."),
    "doctor": ("doctor", "Machine", "Check this machine, and say how to fix what is wrong."),
    "hardware": ("hardware", "Machine", "Show GPUs and memory, and which models fit."),
    "kernels": ("kernels", "Machine", "Build, check and tune GPU kernel packs."),
    "cache": ("cache", "Machine", "Show or empty the cache: models, image layers, kernels."),
    "completion": ("completion", "Help", "Print the script that completes commands on Tab."),
    "man": ("man", "Help", "Write manual pages."),
    "help": ("help", "Help", "Show the help of a command."),
}


class Commands(TyperGroup):
    """A group whose commands are imported only when they are run or asked for help."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override] # noqa: ARG002
        """Return the command names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        return command_of(import_module(f"zse.cli.{COMMANDS[cmd_name][0]}").app)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Offer commands without importing them, and this group's own options."""
        from typer._click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=text)
            for name, (_, _, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: Any, formatter: HelpFormatter) -> None:  # noqa: ARG002
        """Write the table of commands by section, without importing them."""
        width = max(map(len, COMMANDS))
        for section in dict.fromkeys(section for _, section, _ in COMMANDS.values()):
            rows = [(n.ljust(width), text) for n, (_, s, text) in COMMANDS.items() if s == section]
            with formatter.section(section):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C is an ``Abort``, as at a question."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


def _show_version(ctx: typer.Context, is_asked: bool) -> None:
    """Print the version; warn of another program that shares the import name."""
    if not is_asked or ctx.resilient_parsing:
        return
    from zse.install import find_strangers, strangers_warning

    typer.echo(f"zse, version {__version__}")
    if warning := strangers_warning(find_strangers()):
        typer.echo(f"warning: {warning}", err=True)
    raise typer.Exit


app = App(
    cls=Commands,
    add_completion=True,
    invoke_without_command=True,
    context_settings={"help_option_names": HELP_NAMES, "max_content_width": 100},
)


@app.callback()
def root(
    context: typer.Context,
    _: Annotated[
        bool,
        Option(
            "--version",
            is_eager=True,
            callback=_show_version,
            help="Show the version; warn of another program named zse.",
        ),
    ] = False,
) -> None:
    """zse: LLM endpoints that wake up in under a second, each from one file.

    \b
    zse chat tiny       talk to the built-in model; nothing is downloaded
    zse serve tiny      serve it on port 8000: /chat in a browser, /v1 for programs
    zse convert Qwen/Qwen2.5-7B-Instruct -o qwen.zse; zse serve qwen.zse
    """  # noqa: D301 - what Typer takes for "as it stands"
    if context.invoked_subcommand is None:
        from zse.cli.home import show_home

        show_home()


cli = command_of(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the code of what happened."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code instead of leaving the process."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        result = cli.main(args=words, prog_name="zse", standalone_mode=False)
    except typer.Abort:
        typer.echo("stopped", err=True)
        return 130
    except BrokenPipeError:
        return 141
    except Exception as failure:  # noqa: BLE001 - the one place where a failure becomes words
        from zse.cli.error_output import end_with

        return end_with(failure, words)
    return result if isinstance(result, int) else 0
