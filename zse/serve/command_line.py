"""The command line of the server: flags over settings, and what SageMaker adds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from zse.errors import ZSEError
from zse.option import options_of, with_flags, with_values
from zse.serve.start import start
from zse.server_options import ServeOptions
from zse.settings import load_settings

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Mapping, Sequence

    from zse.option import Option

SAGEMAKER_PING = 503
"""While loading: it takes every 2xx for ready."""
SAGEMAKER_PORT = 8080
"""Where SageMaker asks, whatever the image exposes."""


def build_parser() -> ArgumentParser:
    """Return the parser of the flags; what is not given is None."""
    import argparse

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


def run(given: Sequence[str]) -> int:
    """Serve until told to stop; return the exit code."""
    is_sagemaker = given[:1] == ["serve"]  # it starts every image with this word
    if is_sagemaker:
        given = given[1:]
    log_format = "auto"
    try:
        settings = load_settings()
        options = settings.serve
        if is_sagemaker:
            options = _for_sagemaker(options)
        flags = _flags(given)
        log_format = str(flags.get("log_format") or options.log_format)
        return start(with_flags(replace(settings, serve=options), flags))
    except ZSEError as error:
        from zse.serve.failures import report_refusal

        return report_refusal(error, log_format=log_format)


def _flags(given: Sequence[str]) -> Mapping[str, object]:
    """Read the flags; whole ones without the parser, which takes a tenth of a start to build."""
    plain = read_plain(given)
    return vars(build_parser().parse_args(given)) if plain is None else plain


def read_plain(given: Sequence[str]) -> dict[str, object] | None:
    """Return what ``build_parser`` would, where all flags are whole words, with a value each.

    Switches have none. None leaves the rest to it: short forms, and all that it says something
    about.
    """
    switches, rows = _plain_flags()
    found: dict[str, object] = {}
    words = iter(given)
    for word in words:
        if not word.startswith("-"):
            if not word or "model" in found:
                return None
            found["model"] = word
            continue
        if word in switches:
            key, is_on = switches[word]
            found[key] = is_on
            continue
        flag, has_value, value = word.partition("=")
        if flag not in rows:
            return None
        if not has_value:
            value = next(words, "-")
            if value.startswith("-"):
                return None
        if value == "--":  # the end of flags, even behind an equals sign
            return None
        key, row = rows[flag]
        try:
            read = value if row.kind is tuple else row.kind(value)
        except ValueError:
            return None
        found[key] = [*cast("list[str]", found.get(key, [])), read] if row.kind is tuple else read
    return found


def _plain_flags() -> tuple[dict[str, tuple[str, bool]], dict[str, tuple[str, Option]]]:
    """Return switches, with what each says, and the flags that have a value."""
    switches: dict[str, tuple[str, bool]] = {}
    rows: dict[str, tuple[str, Option]] = {}
    for key, row in options_of(ServeOptions).items():
        if not row.by_hand or key == "model":
            continue
        for flag in row.flags:
            if row.kind is not bool:
                rows[flag] = key, row
            elif flag.startswith("--"):
                switches[flag] = key, True
                switches[f"--no-{flag[2:]}"] = key, False
    return switches, rows


def _for_sagemaker(options: ServeOptions) -> ServeOptions:
    """Return the options of a server that AWS alone reaches, and checks who may ask."""
    own = {} if options.port != ServeOptions().port else {"port": SAGEMAKER_PORT}
    guarded = with_values(options, {**own, "public": True})
    return replace(guarded, loading_ping_status=SAGEMAKER_PING)
