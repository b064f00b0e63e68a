"""`zse info`: what a model is and how much memory it takes, before a byte of it is loaded."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from zse.cli.app import App
from zse.cli.parameters import Json, complete_model
from zse.cli.table_flags import with_flags_of

app = App()
MaxContext = Annotated[
    int,
    Option(
        min=0,
        max=1 << 24,
        metavar="TOKENS",
        help="Count memory for this context alone; 0 means 4096, 32768 and the model's own.",
    ),
]


@app.command("info")
@with_flags_of(["kv_dtype"])
def command(
    *,
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="A .zse or GGUF file, a checkpoint folder, an address, or a hub id of the "
            "registry.",
            autocompletion=complete_model,
        ),
    ],
    max_context: MaxContext = 0,
    given: dict[str, Any],
    as_json: Json = False,
) -> None:
    """Show memory per scheme and context, parameters, layers, heads, and the smallest GPU.

    Nothing is downloaded: for a hub id it shows the numbers of the registry.
    """
    from zse.cli.model_report import describe_model, show_model
    from zse.engine.recorded import recorded_facts
    from zse.option import with_flags
    from zse.settings import load_settings

    settings = load_settings()
    kv_dtype = with_flags(settings.serve, given).load.cache.kv_dtype
    facts = recorded_facts(model, settings)
    show_model(describe_model(model, facts, max_context, kv_dtype), as_json=as_json)
