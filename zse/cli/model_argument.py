"""The type of arguments that take a model: any text, completed as a file or a built-in's name."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


class ModelName(click.ParamType):  # type: ignore[type-arg] # generic in later clicks only
    """A path, an address, a hub id or a built-in's name."""

    name = "model"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Offer the built-in models that begin so, and files."""
        from zse.models.builtin import BUILTIN_MODELS

        names = [name for name in BUILTIN_MODELS if name.startswith(incomplete)]
        return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


MODEL = ModelName()
