"""`zse info`: what a model is and how much memory it takes, before a byte of it is loaded."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from zse.cli.app import App
from zse.cli.parameters import Json, complete_model

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
def command(
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
    as_json: Json = False,
) -> None:
    """Show memory per scheme and context, parameters, layers, heads, and the smallest GPU.

    Nothing is downloaded: of a hub id the registry's numbers are shown.
    """
    from zse.cli.model_report import describe_model, show_model
    from zse.engine.recorded import recorded_facts
    from zse.settings import load_settings

    facts = recorded_facts(model, load_settings())
    show_model(describe_model(model, facts, max_context), as_json=as_json)
