"""The command line: one file per command, imported when the command runs.

``main`` is the one place where errors become exit codes and words on stderr.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from zse import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

# name -> (module, help). The help is repeated here so that `zse --help` imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "convert": ("zse.cli.convert", "Turn a Hugging Face checkpoint into one .zse file."),
    "quantize": ("zse.cli.convert", "Alias of convert."),
    "push": ("zse.cli.push", "Copy a file to object storage."),
    "pull": ("zse.cli.pull", "Copy an object to a file: s3://, hf://, https://."),
    "ls": ("zse.cli.ls", "List objects, or uploads that nobody finished."),
    "cache": ("zse.cli.cache", "Show or empty the cache: models, image layers, kernels."),
    "inspect": ("zse.cli.inspect", "Show what a .zse file holds; check its digests."),
    "serve": ("zse.cli.serve", "Serve the OpenAI API."),
    "chat": ("zse.cli.chat", "Chat with a model in the terminal."),
    "benchmark": ("zse.cli.benchmark", "Measure prefill and decode speed, memory, first token."),
    "hardware": ("zse.cli.hardware", "Show GPUs, memory, which models fit, what a GPU lacks."),
    "kernels": ("zse.cli.kernels", "Build, check and tune GPU kernel packs."),
    "build-image": ("zse.cli.build_image", "Write an OCI image around a model, without Docker."),
    "cold-start": ("zse.cli.cold_start", "Measure how long an image or a model takes to wake."),
    "image": ("zse.cli.image", "Look into an image and check it, wherever it is."),
    "deploy": ("zse.cli.deploy", "Deploy an image to a platform, plan first."),
    "completion": ("zse.cli.completion", "Print what makes Tab complete zse's words."),
    "help": ("zse.cli.help", "Show the help of a command."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported only when they are run or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the command names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer commands without importing them, and this group's own options."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = [
            (name, text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [CompletionItem(name, help=text) for name, text in found]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _show_version(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:  # noqa: ARG001
    """Print the version; warn of another program that shares the import name."""
    if not is_asked or ctx.resilient_parsing:
        return
    from zse.install import find_strangers, strangers_warning

    click.echo(f"zse, version {__version__}")
    if warning := strangers_warning(find_strangers()):
        click.echo(f"warning: {warning}", err=True)
    ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version, and another program of the same name.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """zse: an LLM endpoint that was asleep answers in under a second, from one file."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the code of what happened."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code instead of leaving the process."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        result = cli.main(args=words, prog_name="zse", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        return 130
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        return 141
    except Exception as failure:  # noqa: BLE001 - the one place where a failure becomes words
        from zse.cli.error_output import end_with

        return end_with(failure, words)
    return result if isinstance(result, int) else 0
