"""``zse deploy``: from an image to an endpoint on a platform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zse.cli.app import App, GroupedCommand, command_of, say
from zse.cli.deployed import TargetName, send_request
from zse.cli.deployed import app as of_deployed
from zse.cli.parameters import Force, Json, complete_model
from zse.cli.table_flags import with_flags_of
from zse.deploy.order import Order
from zse.deploy.registry import TARGETS
from zse.deploy.verbs import Verb
from zse.option import options_of, own_options

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

    from zse.deploy.plan import Plan
    from zse.models.memory import MemoryEstimate

_TARGET_OF_HELP = "zse.deploy.target"

ModelFile = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="A .zse file or its address: says how large a GPU must be.",
        autocompletion=complete_model,
    ),
]
Image = Annotated[str, Option(metavar="REF", help="Image that the platform pulls.")]
ImageLabels = Annotated[
    str,
    Option(
        metavar="PLACE",
        help="Where the image's labels are read: oci:DIR, tar:FILE, none; else the registry.",
    ),
]
Gpu = Annotated[str, Option(metavar="TYPE", help="GPU type as the platform names it, or none.")]
MemoryGib = Annotated[
    float, Option(show_default=False, help="Memory that MODEL needs, if it is known.")
]
ContextTokens = Annotated[
    int,
    Option("--context", show_default=False, help="Tokens of context that must fit; default 4096."),
]
Env = Annotated[list[str] | None, Option(metavar="NAME=VALUE", help="Variable of the server.")]
Secret = Annotated[
    list[str] | None,
    Option(
        "--secret",
        metavar="NAME=SECRET[:KEY]",
        help="Variable whose value the platform keeps under the name SECRET.",
    ),
]
Extra = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of this target only; `zse deploy TARGET --help` lists them.",
    ),
]
DryRun = Annotated[bool, Option("--dry-run", help="Print the plan and stop.")]
Output = Annotated[Path | None, Option(help="Folder of the files; default NAME-TARGET.")]
Mesh = Annotated[
    bool, Option("--mesh", help="kubernetes: several machines, one model; as --form mesh.")
]
Apply = Annotated[bool, Option("--apply", help="Create it now: run the commands of the plan.")]

app = App()


class _DeployCommand(GroupedCommand):
    """A command whose help goes on with what the target that was named knows."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        """Hand ``TARGET VERB`` to the command that looks after what was deployed."""
        if args[:1] and args[0] in TARGETS and args[1:2] and args[1] in set(Verb):
            return command_of(of_deployed).make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Remember the target for the help, which is printed before arguments are parsed."""
        ctx.meta[_TARGET_OF_HELP] = next((word for word in args if word in TARGETS), "")
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        """List the settings of ``--set``, by form where they belong to one."""
        from zse.deploy.registry import settings_of

        name = ctx.meta.get(_TARGET_OF_HELP)
        if not name:
            with formatter.section("Targets"):
                formatter.write_dl([(key, target.summary) for key, target in TARGETS.items()])
            return
        settings = settings_of(name)
        for form in dict.fromkeys(setting.form for setting in settings):
            rows = [(item.written, item.told) for item in settings if item.form == form]
            with formatter.section(f"Settings of {' '.join((name, form)).strip()} (--set)"):
                formatter.write_dl(rows)
        if not settings:
            formatter.write_paragraph()
            formatter.write_text(f"{name} has no settings of its own (--set).")


@app.command("deploy", cls=_DeployCommand)
@with_flags_of(options_of(Order), of=Order)
def command(
    *,
    target: TargetName,
    model: ModelFile = "",
    image: Image,
    image_labels: ImageLabels = "",
    gpu: Gpu = "",
    memory_gib: MemoryGib = 0.0,
    context_tokens: ContextTokens = 0,
    given: dict[str, Any],
    env: Env = None,
    secrets: Secret = None,
    extra: Extra = None,
    dry_run: DryRun = False,
    output: Output = None,
    force: Force = False,
    is_mesh: Mesh = False,
    is_applied: Apply = False,
    as_json: Json = False,
) -> None:
    """Deploy an image that serves MODEL to TARGET.

    Leave MODEL out when the image holds the model and --gpu says the rest; an address is what the
    server reads it from (s3://, hf://, https://).

    `zse deploy TARGET status`, `logs` and `destroy` look after what was deployed.

    The plan is printed first: what will be created, on which machine, for how much an hour, with
    which secrets. Then its files are written; nothing costs money before --apply.
    """
    from zse.deploy.image_look import look_at
    from zse.deploy.order import parse_pairs, parse_secrets
    from zse.deploy.registry import make_plan
    from zse.settings import load_settings

    fields = {name: given[row.key] for name, row in own_options(Order).items()}
    if is_mesh:
        fields["form"] = fields["form"] or "mesh"
    is_placed = bool(gpu or fields["volume"] or fields["bucket"])
    order = Order(
        image=image,
        model=model,
        gpu=gpu,
        env=parse_pairs(env or [], "--env"),
        secrets=parse_secrets(secrets or []),
        extra=parse_pairs(extra or [], "--set"),
        look=look_at(image, image_labels, auth_file=load_settings().registry_auth_file),
        need=_need(target, model, gpu, context_tokens, memory_gib, is_placed),
        **fields,
    )
    plan = make_plan(target, order)
    typer.echo(json.dumps(plan.to_json(), indent=2) if as_json else plan.to_text())
    if not dry_run:
        _carry_out(plan, output, is_forced=force, is_applied=is_applied)


def _need(
    target: str, model: str, gpu: str, context_tokens: int, memory_gib: float, is_chosen: bool
) -> MemoryEstimate | None:
    """Return what MODEL takes where it is to run; one who has chosen a place can do without."""
    from zse.deploy.order import NO_GPU
    from zse.deploy.sizing import measure
    from zse.errors import UsageError
    from zse.settings import load_settings

    if model in set(Verb):
        raise UsageError(
            f"{model} is not a model",
            hint=f"Write zse deploy {target} {model}, its options behind it.",
        )
    return measure(
        model,
        load_settings(),
        on_gpu=TARGETS[target].has_gpus and gpu != NO_GPU,
        context_tokens=context_tokens,
        memory_gib=memory_gib,
        is_needed=not is_chosen,
    )


def _carry_out(plan: Plan, output: Path | None, *, is_forced: bool, is_applied: bool) -> None:
    from zse.deploy.carry_out import run_commands, write_files
    from zse.deploy.deployed import keep_answer
    from zse.errors import UsageError

    if is_applied and plan.first:
        raise UsageError(f"--apply comes too early: {plan.first}")
    folder = output or Path(f"{plan.order.name}-{plan.target}")
    written = write_files(plan, folder, is_forced=is_forced)
    say(f"{len(written)} of {len(plan.files)} files written to {folder}")
    if not is_applied:
        say("nothing was created yet: --apply does it, or the commands above, there")
        return
    if plan.request is not None:
        keep_answer(folder, send_request(plan.request))
    run_commands(plan.commands, folder, say)
