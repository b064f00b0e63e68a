"""``zse deploy TARGET status|logs|destroy``: what is done with something that was deployed."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zse.cli.app import App, say
from zse.deploy.registry import TARGETS
from zse.deploy.verbs import Verb

if TYPE_CHECKING:
    from zse.deploy.deployed import Action, Deployment
    from zse.deploy.plan import Request


if TYPE_CHECKING:
    _Target = str
else:
    _Target = StrEnum("_Target", {name: name for name in TARGETS})
TargetName = Annotated[_Target, Argument(metavar="TARGET", help="The platform.")]

app = App()


@app.command("deploy")
def command(
    target: TargetName,
    verb: Annotated[Verb, Argument(metavar="VERB")],
    output: Annotated[
        Path | None,
        Option(help="Folder that zse deploy wrote; found here or one folder below when not given."),
    ] = None,
    identifier: Annotated[str, Option("--id", help="The platform's own, where it needs one.")] = "",
    follow: Annotated[bool, Option("--follow", help="Go on showing logs.")] = False,
    yes: Annotated[bool, Option("--yes", help="Destroy without asking.")] = False,
) -> None:
    """Look after what was deployed to TARGET: status, logs, destroy.

    The folder that `zse deploy` wrote holds zse-deploy.json, which knows the names. The platform's
    own tool does the work; where it has none, zse says what to do instead.
    """
    from zse.deploy.carry_out import run_commands
    from zse.deploy.deployed import find_folder, make_action, recall
    from zse.deploy.errors import DeployError

    folder = output or find_folder(Path(), target)
    deployed = recall(folder, target, identifier=identifier)
    action = make_action(verb, deployed, follows=follow)
    if action.instead:
        raise DeployError(f"{target} has no way to do this from here", hint=action.instead)
    if verb == Verb.DESTROY:
        _ask(deployed, action, folder, is_sure=yes)
    if action.request is not None:
        send_request(action.request)
    run_commands(action.commands, folder, say)


def _ask(deployed: Deployment, action: Action, folder: Path, *, is_sure: bool) -> None:
    """Say what is about to be destroyed, where and how; ask unless the user is sure."""
    if action.stays:
        say(f"what stays: {action.stays}")
    if not is_sure:
        for words in action.commands:
            say(f"what runs in {folder}: {shlex.join(words)}")
        typer.confirm(f"Destroy {deployed.name} on {deployed.target}?", abort=True, err=True)


def send_request(request: Request) -> Any:
    """Send a platform's API a request, saying which; show and return its answer, if it has one."""
    from zse.deploy.runpod_api import send
    from zse.settings import load_settings

    say(f"{request.method} {request.url}")
    answer = send(request, load_settings().runpod_api_key)
    if answer is not None:
        typer.echo(json.dumps(answer, indent=2))
    return answer
