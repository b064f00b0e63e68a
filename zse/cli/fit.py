"""`zse fit`: how many copies of a model, or of several, a GPU holds at once."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from zse.cli.app import App
from zse.cli.parameters import Json, complete_model
from zse.cli.table_flags import with_flags_of

app = App()


@app.command("fit")
@with_flags_of(["kv_dtype"])
def command(
    *,
    models: Annotated[
        list[str],
        Argument(
            metavar="MODEL[=COUNT]",
            help="A .zse or GGUF file, a checkpoint folder, an address, or a hub id of the "
            "registry; with how many copies of it there are to be.",
            autocompletion=complete_model,
        ),
    ],
    gpu: Annotated[
        str,
        Option(metavar="NAME", help="Only this GPU, such as 'A100 80 GB' (default: all)."),
    ] = "",
    vram_gib: Annotated[
        float, Option(min=0.0, help="A GPU of this much memory, in place of the known ones.")
    ] = 0.0,
    quant: Annotated[
        str, Option(help="Scheme of what is not converted yet, as of zse convert.")
    ] = "int4",
    max_context: Annotated[
        int, Option(min=0, max=1 << 24, metavar="TOKENS", help="KV cache of each copy.")
    ] = 4096,
    given: dict[str, Any],
    as_json: Json = False,
) -> None:
    """Plan the models of one GPU: how many copies it holds, or whether a mix fits it.

    Each copy is counted as a process of its own, as platforms start them. Nothing is downloaded.
    Without a GPU all that are known are told; the exit code is 1 where a mix fits none of them.
    """
    from zse.cli.fit_report import describe_fit, gpus_named, show_fit, wanted_models
    from zse.option import with_flags
    from zse.settings import load_settings

    settings = load_settings()
    cache = with_flags(settings.serve, given).load.cache
    wanted = wanted_models(
        models, settings, quantization=quant, context_tokens=max_context, kv_dtype=cache.kv_dtype
    )
    show_fit(describe_fit(wanted, gpus_named(gpu, vram_gib)), as_json=as_json)
