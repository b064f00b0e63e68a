"""Credentials that a build needs and an image must not hold.

They reach one place: the environment of the pip that downloads wheels. They are never an input of
a layer, a lock or a cache key, and they are taken out of what pip says before it is shown.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from zse.errors import NotFoundError, UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PIP_VARIABLES = {
    "index-url": "PIP_INDEX_URL",
    "extra-index-url": "PIP_EXTRA_INDEX_URL",
    "proxy": "PIP_PROXY",
    "netrc": "NETRC",
}
"""Secrets by the name that ``--secret`` gives them, and the variable that pip reads them from."""
_FILES = frozenset({"netrc"})


@record
class Secrets:
    """Secrets by name. Not shown when printed."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def pip_variables(self) -> dict[str, str]:
        return {PIP_VARIABLES[name]: value for name, value in self.values.items()}

    def redact(self, text: str) -> str:
        """Replace every secret in a text, whole or the user and password of its address."""
        for word in sorted(self._words(), key=len, reverse=True):
            text = text.replace(word, "***")
        return text

    def _words(self) -> set[str]:
        words: set[str] = set()
        for name, value in self.values.items():
            if name in _FILES:
                continue
            words.add(value)
            address = urlsplit(value)
            for part in (address.password, address.username if not address.password else ""):
                if part:
                    words |= {part, unquote(part), quote(part, safe="")}
        return words - {""}


def read_secrets(texts: Sequence[str], environment: Mapping[str, str]) -> Secrets:
    """Read ``NAME=FILE`` and ``NAME=env:VARIABLE``, as ``--secret`` takes them.

    Raises:
        UsageError: The name is not known, or the variable is not set.
        NotFoundError: There is no such file.
    """
    values = {}
    for text in texts:
        name, equals, source = text.partition("=")
        if name not in PIP_VARIABLES or not equals or not source:
            raise UsageError(
                f"--secret {name} is not understood",
                hint=f"Write NAME=FILE or NAME=env:VARIABLE; names: {', '.join(PIP_VARIABLES)}.",
            )
        if source.startswith("env:"):
            variable = source.removeprefix("env:")
            if not environment.get(variable):
                raise UsageError(f"--secret {name}: the variable {variable} is not set")
            values[name] = environment[variable]
        elif not Path(source).is_file():
            raise NotFoundError(f"--secret {name}: the file {source} does not exist")
        else:
            values[name] = source if name in _FILES else Path(source).read_text().strip()
    return Secrets(values=values)
