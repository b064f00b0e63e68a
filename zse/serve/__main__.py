"""``python -m zse.serve``: the entry point of images."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import ZSEError
from zse.serve.options import ServeOptions
from zse.serve.start import start
from zse.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

SAGEMAKER_PING = 503
SAGEMAKER_PORT = 8080
"""Where SageMaker asks, whatever the image exposes."""


def build_parser(settings: Settings) -> argparse.ArgumentParser:
    """Return the parser; the environment supplies the defaults."""
    parser = argparse.ArgumentParser(prog="zse.serve", description="Serve the OpenAI API.")
    add = parser.add_argument
    add("model", nargs="?", default=settings.model, help="a .zse file, checkpoint, hub id or tiny")
    add("--host", default=settings.host, help="address to bind")
    add("--port", type=int, default=settings.port, help="port to bind; 0 takes a free one")
    add("--device", default=settings.device, help="auto, cpu, cuda or cuda:N")
    add("--served-model-name", default=settings.served_model_name, help="name in /v1/models")
    add("--max-context", type=int, default=settings.max_context, help="longest sequence, tokens")
    add("--threads", type=int, default=settings.threads, help="CPU threads; 0 is all")
    add("--kv-gib", type=float, default=settings.kv_gib, help="KV cache in GiB; 0 is automatic")
    add(
        "--vram-gib",
        "--vram",
        type=float,
        default=settings.vram_gib,
        help="GPU memory, GiB; 0: all",
    )
    add("--kv-dtype", default=settings.kv_dtype, help="auto, fp32, bf16 or int8")
    add(
        "--exact-activations",
        action=argparse.BooleanOptionalAction,
        default=settings.exact_activations,
        help="never round activations to 8 bits",
    )
    add("--kernels", default=settings.kernels, help="kernel pack for the GPU")
    add("--max-running", type=int, default=settings.max_running, help="answers that run at once")
    add("--max-queue", type=int, default=settings.max_queue, help="waiting answers before 429")
    add("--drain-seconds", type=float, default=settings.drain_seconds, help="patience of SIGTERM")
    add("--log-level", default=settings.log_level, help="debug, info, warning or error")
    add("--log-format", default=settings.log_format, help="auto, text or json")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    loading_ping_status = 204
    if given[:1] == ["serve"]:  # SageMaker starts every image with this word
        given = given[1:]
        loading_ping_status = SAGEMAKER_PING  # and takes every 2xx for ready
    log_format = "auto"
    try:
        settings = load_settings()
        if loading_ping_status == SAGEMAKER_PING and settings.port == Settings().port:
            settings = replace(settings, port=SAGEMAKER_PORT)
        values = vars(build_parser(settings).parse_args(given))
        log_format = values["log_format"]
        options = ServeOptions(
            **values,
            loading_ping_status=loading_ping_status,
            start_time_ns=settings.start_time_ns,
        )
        return start(options)
    except ZSEError as error:
        from zse.serve.failures import report_refusal

        return report_refusal(error, log_format=log_format)


if __name__ == "__main__":
    sys.exit(main())
