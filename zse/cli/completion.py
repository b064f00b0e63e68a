"""``zse completion``: the script that completes zse's commands, options and models with Tab."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer import Argument
from typer._completion_shared import get_completion_script

from zse.cli.app import App

app = App()


@app.command("completion")
def command(
    shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], Argument(metavar="SHELL")],
) -> None:
    """Print the script for SHELL (bash, zsh, fish, powershell); your shell reads it when it starts.

    `zse --install-completion` puts it where the shell of this terminal looks. By hand it is

    bash: eval "$(zse completion bash)" in ~/.bashrc; zsh: the same with zsh, in ~/.zshrc;
    fish: zse completion fish > ~/.config/fish/completions/zse.fish; PowerShell: zse completion
    powershell | Out-String | Invoke-Expression in $PROFILE
    """
    typer.echo(get_completion_script(prog_name="zse", complete_var="_ZSE_COMPLETE", shell=shell))
