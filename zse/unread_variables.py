"""Variables that are meant for zse and that nothing reads: typing errors, names of older versions.

A server says so when it starts, for an option that does nothing is found late. One that was to
guard it, such as a key, ends the start: a server that is open in silence is worse than none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zse.errors import BadSettingError
from zse.option import options_of
from zse.records import record
from zse.settings import Settings, names_like_ours

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from zse.option import Option

_OF_TESTS = ("ZSE_TEST_", "ZSE_REQUIRE_", "ZSE_STUB_")
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP|SCTP).*)?$")
"""What it tells pods about a service that is called ``zse``, or ``zse-...``."""


@record
class UnreadVariable:
    """One of them."""

    name: str
    meant: str = ""
    """The variable that it resembles; empty where it resembles none."""
    is_guard: bool = False
    """Whether that one holds a secret, or names a file of keys or certificates."""

    @property
    def hint(self) -> str:
        return (
            f"Did you mean {self.meant}?" if self.meant else "Remove it, or see `zse config show`."
        )


def unread_variables(names: Iterable[str] | None = None) -> tuple[UnreadVariable, ...]:
    """Return the variables that begin as ours do and that nothing here reads.

    What our own tests and scripts read (``ZSE_TEST_...``, ``ZSE_REQUIRE_...``) is left out.

    Args:
        names: Those to look at; by default all of this process.
    """
    ours = names_like_ours() if names is None else (n for n in names if n.startswith("ZSE_"))
    rows = {name: row for row in options_of(Settings).values() for name in row.variables}
    unread = [name for name in ours if name not in rows and not _is_of_others(name)]
    return tuple(_unread(name, rows) for name in unread)


def refuse_lost_guards(names: Iterable[str] | None = None) -> None:
    """See that no variable was meant to hold a key and is read by nothing.

    Args:
        names: As ``unread_variables`` has them.

    Raises:
        BadSettingError: One was.
    """
    for one in unread_variables(names):
        if one.is_guard:
            raise BadSettingError(
                f"nothing reads the variable {one.name}, so what it was to guard would be open",
                hint=f"{one.hint} Rename it or unset it.",
            )


def warn_of_unread(log: logging.Logger) -> None:
    """Say in a log which variables do nothing."""
    for one in unread_variables():
        log.warning("nothing reads the variable %s", one.name, extra={"hint": one.hint})


def _is_of_others(name: str) -> bool:
    return name.startswith(_OF_TESTS) or _OF_KUBERNETES.search(name) is not None


def _unread(name: str, rows: dict[str, Option]) -> UnreadVariable:
    import difflib  # only where there is one

    near = difflib.get_close_matches(name, rows, n=1)
    if not near:
        return UnreadVariable(name=name)
    row = rows[near[0]]
    is_guard = row.is_secret or row.key.endswith("file")
    return UnreadVariable(name=name, meant=near[0], is_guard=is_guard)
