"""``zse serve``: the server with flags; the same boot as ``python -m zse.serve``."""

from __future__ import annotations

import click

from zse.cli.model_argument import MODEL
from zse.settings import load_settings


@click.command(name="serve", short_help="Serve the OpenAI API.")
@click.argument("model", required=False, type=MODEL)
@click.option("--host", help="Address to bind.  [ZSE_HOST, else 127.0.0.1]")
@click.option("--port", type=int, help="Port to bind; 0 takes a free one.  [PORT, ZSE_PORT, 8000]")
@click.option("--device", help="auto, cpu, cuda or cuda:N.  [ZSE_DEVICE, else auto]")
@click.option("--served-model-name", help="Name in /v1/models.  [the model's own]")
@click.option("--max-context", type=int, help="Longest sequence in tokens.  [what the model says]")
@click.option("--threads", type=int, help="CPU threads.  [one a core, within the quota]")
@click.option("--kv-gib", type=float, help="KV cache in GiB.  [from what is free]")
@click.option("--vram-gib", "--vram", type=float, help="GPU memory in GiB.  [all that is free]")
@click.option("--kv-dtype", help="Type of the KV cache: auto, fp32, bf16 or int8.  [auto]")
@click.option(
    "--exact-activations/--no-exact-activations",
    default=None,
    help="Never round activations to 8 bits on a GPU; slower decoding.",
)
@click.option("--kernels", help="Kernel pack for the GPU.  [model file, image, cache]")
@click.option("--max-running", type=int, help="Answers that run at once.  [64]")
@click.option("--max-queue", type=int, help="Answers that may wait before 429.  [256]")
@click.option("--drain-seconds", type=float, help="How long SIGTERM waits for answers.  [30]")
@click.option("--log-level", help="debug, info, warning or error.  [info]")
@click.option("--log-format", help="text, json or auto: text on a terminal.  [auto]")
def command(**flags: object) -> int:
    """Serve MODEL (a .zse file, a checkpoint folder, a hub id or "tiny") over HTTP.

    The port answers at once: /health/live says so, /health/ready waits for the model. Logs go to
    stderr: words on a terminal, JSON lines elsewhere. Ctrl-C and SIGTERM let running answers end
    first.
    """
    from zse.options import with_flags
    from zse.serve.start import start

    return start(with_flags(load_settings().serve, flags))
