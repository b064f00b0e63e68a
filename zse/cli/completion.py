"""``zse completion``: the script that completes zse's commands, options and models with Tab."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from zse.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print what makes Tab complete zse's words.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script for SHELL; your shell reads it when it starts.

    bash: put `eval "$(zse completion bash)"` into ~/.bashrc. zsh: the same with zsh, in ~/.zshrc.
    fish: zse completion fish > ~/.config/fish/completions/zse.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise UsageError(f"there is no completion for {shell}", hint=f"{', '.join(SHELLS)}.")
    click.echo(found(context.find_root().command, {}, "zse", "_ZSE_COMPLETE").source())
