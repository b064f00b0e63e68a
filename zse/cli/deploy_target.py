"""The TARGET of ``zse deploy``: a name of the table of targets."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from zse.deploy.registry import TARGETS

if TYPE_CHECKING:
    _Name = str
else:
    _Name = StrEnum("_Name", {name: name for name in TARGETS})
TargetName = Annotated[_Name, typer.Argument(metavar="TARGET", help="The platform.")]
