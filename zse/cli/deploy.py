"""``zse deploy``: from an image to an endpoint on a platform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zse.cli.model_argument import MODEL
from zse.deploy.registry import TARGETS
from zse.deploy.verbs import Verb

if TYPE_CHECKING:
    from zse.deploy.order import Order
    from zse.deploy.plan import Plan


_TARGET_OF_HELP = "zse.cli.deploy.target"


class _DeployCommand(click.Command):
    """A command whose help goes on with what the target that was named knows."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Hand ``TARGET VERB`` to the command that looks after what was deployed."""
        if args[:1] and args[0] in TARGETS and args[1:2] and args[1] in set(Verb):
            from zse.cli.deployed import command as of_deployed

            return of_deployed.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remember the target for the help, which is printed before arguments are parsed."""
        ctx.meta[_TARGET_OF_HELP] = next((word for word in args if word in TARGETS), "")
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
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


@click.command("deploy", cls=_DeployCommand)
@click.argument("target", type=click.Choice(list(TARGETS)), metavar="TARGET")
@click.argument("model", default="", type=MODEL)
@click.option("--image", required=True, metavar="REF", help="Image that the platform pulls.")
@click.option(
    "--image-labels",
    default="",
    metavar="PLACE",
    help="Where the image's labels are read: oci:DIR, tar:FILE, none; else the registry.",
)
@click.option("--name", default="", help="Of the endpoint; the image's name when not given.")
@click.option(
    "--form",
    default="",
    help="Of modal: server or class; runpod: load-balancer or queue;"
    " kubernetes: scale-to-zero or always-on; terraform: the module.",
)
@click.option(
    "--gpu", default="", metavar="TYPE", help="GPU type as the platform names it, or none."
)
@click.option(
    "--memory-gib", type=float, default=0.0, help="Memory that MODEL needs, if it is known."
)
@click.option(
    "--context", type=int, default=0, help="Tokens of context that must fit; default 4096."
)
@click.option(
    "--min",
    "min_replicas",
    type=int,
    default=0,
    show_default=True,
    help="Replicas that never sleep.",
)
@click.option(
    "--max", "max_replicas", type=int, default=1, show_default=True, help="Replicas at most."
)
@click.option("--concurrency", type=int, default=16, show_default=True, help="Requests a replica.")
@click.option(
    "--idle-seconds", type=int, default=300, show_default=True, help="Until a replica sleeps."
)
@click.option(
    "--startup-seconds", type=int, default=240, show_default=True, help="Until a start has failed."
)
@click.option(
    "--drain-seconds", type=int, default=30, show_default=True, help="For work in flight at a stop."
)
@click.option("--port", type=int, default=8000, show_default=True, help="Port of the server.")
@click.option("--public", is_flag=True, help="Let anyone ask who knows the address.")
@click.option("--region", default="", help="As the platform names it.")
@click.option("--volume", default="", help="Volume of the platform, mounted at /models.")
@click.option("--bucket", default="", help="Bucket mounted at /models (modal).")
@click.option("--bucket-secret", default="", help="The platform's secret with the bucket's keys.")
@click.option("--registry-secret", default="", help="The platform's credential for the registry.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable of the server.")
@click.option(
    "--secret",
    multiple=True,
    metavar="NAME=SECRET[:KEY]",
    help="Variable whose value the platform keeps under the name SECRET.",
)
@click.option(
    "--set",
    "extra",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of this target only; `zse deploy TARGET --help` lists them.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder of the files; default NAME-TARGET."
)
@click.option("--force", is_flag=True, help="Replace files that say something else.")
@click.option(
    "--apply", "is_applied", is_flag=True, help="Create it now: run the commands of the plan."
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(**flags: Any) -> None:
    """Deploy an image that serves MODEL to TARGET.

    MODEL is a .zse file, whose header says how large a GPU must be: here, or at the address that
    the server is to read (s3://, hf://, https://). Leave it out when the image holds the model and
    --gpu says the rest.

    `zse deploy TARGET status`, `logs` and `destroy` look after what was deployed.

    The plan is printed first: what will be created, on which machine, for how much an hour, with
    which secrets. Then its files are written; nothing costs money before --apply.
    """
    from zse.deploy.registry import make_plan

    plan = make_plan(flags["target"], _order(flags))
    click.echo(json.dumps(plan.to_json(), indent=2) if flags["as_json"] else plan.to_text())
    if not flags["dry_run"]:
        _carry_out(plan, flags)


def _order(flags: dict[str, Any]) -> Order:
    from zse.deploy.image_look import look_at
    from zse.deploy.order import NO_GPU, Order, parse_pairs, parse_secrets
    from zse.deploy.sizing import measure
    from zse.errors import UsageError
    from zse.settings import load_settings

    if flags["model"] in set(Verb):
        raise UsageError(
            f"{flags['model']} is not a model",
            hint=f"Write zse deploy {flags['target']} {flags['model']}, its options behind it.",
        )
    auth_file = Path(load_settings().registry_auth_file)
    has_gpu = TARGETS[flags["target"]].has_gpus and flags["gpu"] != NO_GPU
    same = (
        "image", "model", "name", "form", "gpu", "min_replicas", "max_replicas", "concurrency",
        "idle_seconds", "startup_seconds", "drain_seconds", "port", "region", "volume", "bucket",
        "bucket_secret", "registry_secret",
    )  # fmt: skip
    return Order(
        look=look_at(flags["image"], flags["image_labels"], auth_file=auth_file),
        **{name: flags[name] for name in same},
        need=measure(
            flags["model"],
            on_gpu=has_gpu,
            context_tokens=flags["context"],
            memory_gib=flags["memory_gib"],
            is_needed=not (flags["gpu"] or flags["volume"] or flags["bucket"]),
        ),
        is_public=flags["public"],
        env=parse_pairs(flags["env"], "--env"),
        secrets=parse_secrets(flags["secret"]),
        extra=parse_pairs(flags["extra"], "--set"),
    )


def _carry_out(plan: Plan, flags: dict[str, Any]) -> None:
    from zse.deploy.carry_out import run_commands, write_files
    from zse.errors import UsageError

    if flags["is_applied"] and plan.first:
        raise UsageError(f"--apply comes too early: {plan.first}")
    folder: Path = flags["output"] or Path(f"{plan.order.name}-{plan.target}")
    written = write_files(plan, folder, is_forced=flags["force"])
    _say(f"{len(written)} of {len(plan.files)} files written to {folder}")
    if not flags["is_applied"]:
        _say("nothing was created yet: --apply does it, or the commands above, there")
        return
    if plan.request is not None:
        _send(plan, folder)
    run_commands(plan.commands, folder, _say)


def _send(plan: Plan, folder: Path) -> None:
    from zse.deploy.deployed import keep_answer
    from zse.deploy.runpod_api import send
    from zse.settings import load_settings

    assert plan.request is not None
    _say(f"{plan.request.method} {plan.request.url}")
    answer = send(plan.request, load_settings().runpod_api_key)
    keep_answer(folder, answer)
    click.echo(json.dumps(answer, indent=2))


def _say(words: str) -> None:
    click.echo(words, err=True)
