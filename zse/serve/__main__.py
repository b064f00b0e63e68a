"""``python -m zse.serve``: the entry point of images."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import ZSEError
from zse.options import ServeOptions, options_of, with_flags
from zse.serve.start import start
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

SAGEMAKER_PING = 503
SAGEMAKER_PORT = 8080
"""Where SageMaker asks, whatever the image exposes."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags; what is not given is None."""
    parser = argparse.ArgumentParser(prog="zse.serve", description="Serve the OpenAI API.")
    for key, row in options_of(ServeOptions).items():
        told = row.help_text.replace("%", "%%")
        if key == "model":
            parser.add_argument("model", nargs="?", help=told)
        elif row.by_hand and row.kind is bool:
            parser.add_argument(*row.flags, action=argparse.BooleanOptionalAction, help=told)
        elif row.by_hand and row.kind is tuple:
            parser.add_argument(*row.flags, dest=key, action="append", help=told)
        elif row.by_hand:
            parser.add_argument(*row.flags, dest=key, type=row.kind, help=told)
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
        options = replace(settings.serve, loading_ping_status=loading_ping_status)
        if loading_ping_status == SAGEMAKER_PING and options.port == ServeOptions().port:
            options = replace(options, port=SAGEMAKER_PORT)
        flags = vars(build_parser().parse_args(given))
        log_format = flags["log_format"] or options.log_format
        return start(with_flags(replace(settings, serve=options), flags))
    except ZSEError as error:
        from zse.serve.failures import report_refusal

        return report_refusal(error, log_format=log_format)


if __name__ == "__main__":
    sys.exit(main())
