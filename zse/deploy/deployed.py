"""What was deployed: a small file beside the rendered ones, so that later commands know its names.

The folder may come from somebody else's repository. What is read from it becomes words of commands
and parts of addresses, so every value is held to letters, digits and a few signs.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import field
from typing import TYPE_CHECKING, Any

from zse.deploy.errors import DeployError
from zse.deploy.plan import Request
from zse.deploy.tables import target_table
from zse.errors import NotFoundError, UsageError
from zse.records import record
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zse.deploy.verbs import Verb

RECORD = "zse-deploy.json"
ANSWER = "answer.json"
"""What the platform answered when it made the endpoint: its identifier."""
_IDENTIFIER_KEYS = ("id", "new_contract")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:()-]{0,127}")
"""A word of a command that no tool takes for an option, a path or an address."""
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""A part of an address as well."""
_MAX_BYTES = 1 << 20


@record
class Deployment:
    """One deployment, as its platform knows it.

    Raises:
        DeployError: A value could be taken for something else than a name.
    """

    target: str
    name: str
    form: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    """What else its platform asks for: a namespace, a region."""
    identifier: str = ""
    """The platform's own; empty when the platform goes by names, or was not heard."""

    def __post_init__(self) -> None:
        words = [self.target, self.name, self.form, *self.details.values()]
        wrong = [word for word in words if word and not _WORD.fullmatch(word)]
        if self.identifier and not _IDENTIFIER.fullmatch(self.identifier):
            wrong.append(self.identifier)
        if wrong:
            raise DeployError(
                f"{wrong[0]!r} is not a name of a deployment",
                hint=f"Look at {RECORD} and {ANSWER}, or what was given in their place.",
            )

    def to_text(self) -> str:
        """Return what the record says; the identifier has a file of its own."""
        said = {
            "target": self.target,
            "form": self.form,
            "name": self.name,
            "details": dict(self.details),
        }
        return json.dumps(said, indent=2) + "\n"

    def __getitem__(self, name: str) -> str:
        """Return what a platform calls it by: its name, form, identifier or a detail.

        Raises:
            NotFoundError: The platform's identifier is not known here.
            DeployError: The record does not hold the detail.
        """
        if name == "identifier" and not self.identifier:
            raise NotFoundError(
                f"{self.target}'s identifier of {self.name} is not known here",
                hint=f"Give --id; {ANSWER} holds it when it was made with --apply.",
            )
        own = {"name": self.name, "form": self.form, "identifier": self.identifier}
        found = {**self.details, **own}.get(name)
        if not found:
            raise DeployError(f"{RECORD} does not say the {name}", hint="Write the files again.")
        return found


@record
class Action:
    """How a platform does what a verb says."""

    commands: tuple[tuple[str, ...], ...] = ()
    """Run in the folder of the files."""
    request: Request | None = None
    instead: str = ""
    """What people do where no tool does it."""
    stays: str = ""
    """What a destruction leaves behind."""


def make_action(verb: Verb, deployed: Deployment, *, follows: bool = False) -> Action:
    """Say how a platform does what a verb says: the words stand in its table, ``targets``.

    Raises:
        NotFoundError: It takes an identifier that is not known.
    """
    verbs = target_table(deployed.target, deployed.form)["verbs"]
    said = verbs[verb]
    if follows and verb == "logs":
        said = verbs.get("follow", said)
    if not deployed.identifier:
        said = verbs.get(f"{verb}_of_all", said)
    stays = verbs.get("stays", "")
    if isinstance(said, str):
        words = tuple(word.format_map(deployed) for word in shlex.split(said))
        return Action(commands=(words,), stays=stays)
    if "instead" in said:
        return Action(instead=said["instead"])
    method, _, url = said["request"].partition(" ")
    return Action(request=Request(method=method, url=url.format_map(deployed)), stays=stays)


def recall(folder: Path, target: str, *, identifier: str = "") -> Deployment:
    """Read what was deployed from a folder that `zse deploy` wrote.

    Raises:
        NotFoundError: The folder holds no record.
        UsageError: It is another platform's.
        DeployError: The record is damaged.
    """
    if not (folder / RECORD).is_file():
        raise NotFoundError(
            f"{folder} holds no {RECORD}", hint="Give --output FOLDER, which zse deploy wrote."
        )
    said = _read(folder / RECORD)
    details = said.get("details", {})
    texts = [said.get("target"), said.get("name"), said.get("form", "")]
    if not isinstance(details, dict) or not all(
        isinstance(text, str) for text in (*texts, *details.values())
    ):
        raise DeployError(f"{folder / RECORD} is not what zse deploy writes")
    if said["target"] != target:
        raise UsageError(
            f"{folder} was deployed to {said['target']}", hint=f"Say zse deploy {said['target']}."
        )
    return Deployment(
        target=target,
        name=said["name"],
        form=said.get("form", ""),
        details=details,
        identifier=identifier or _answered(folder / ANSWER),
    )


def find_folder(start: Path, target: str) -> Path:
    """Return the folder of the one deployment of a target: here, or one folder below.

    Raises:
        NotFoundError: There is none.
        UsageError: There are several.
    """
    if (start / RECORD).is_file():
        return start
    found = sorted(path.parent for path in start.glob(f"*-{target}/{RECORD}"))
    if not found:
        raise NotFoundError(
            f"nothing here was deployed to {target}",
            hint=f"Give --output FOLDER, the one that holds {RECORD}.",
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UsageError(f"several were deployed to {target}: {names}", hint="Give --output.")
    return found[0]


def keep_answer(folder: Path, answer: Any) -> None:
    """Keep the identifier of a platform's answer, and nothing else of it."""
    if isinstance(answer, dict) and "id" in answer:
        write_whole(folder / ANSWER, json.dumps({"id": str(answer["id"])}) + "\n")


def _answered(path: Path) -> str:
    said = _read(path) if path.is_file() else {}
    return next((str(said[key]) for key in _IDENTIFIER_KEYS if key in said), "")


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(_MAX_BYTES))
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise DeployError(f"{path} is not a JSON object")
    return said
