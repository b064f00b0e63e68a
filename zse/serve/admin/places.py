"""Where a server may load models from: what its command line names, and nothing else.

A client says the name of a model, never a path: in a folder it is looked up among those that are
there, so there is no path to escape with. Of a bucket or an owner on the hub, the whole address is
read by the rules for addresses and held against the place; hosts are those of the server's own
settings.
"""

from __future__ import annotations

import re
from copy import copy
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zse.errors import NotFoundError, UsageError, ZSEError
from zse.models.builtin import BUILTIN_MODELS
from zse.models.resolve import SUFFIX
from zse.records import record
from zse.serve.load import model_name_of
from zse.store.location import Location, is_address, is_hub_id, parse_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_LISTED = 1000
"""Models of one folder."""
MAX_LOOKED_AT = 20_000
"""Files of one folder, models or not."""
MAX_NAME = 512
_OWNER = re.compile(r"hf://([A-Za-z0-9][\w.\-]*)/?", re.ASCII)


class ModelNotAllowedError(NotFoundError):
    """It is in no place that this server loads from; whether it exists is not said."""

    http_status = 404
    error_code = "model_not_found"


@record
class PlacedModel:
    """A model that may be loaded."""

    name: str
    """What a client calls it."""
    reference: str
    """What ``open_model`` takes."""
    size_bytes: int | None = None
    """Of a .zse file of this machine."""


class Place(Protocol):
    """One entry of ``--model-places``."""

    def listed(self) -> Iterator[PlacedModel]:
        """Yield what is there, as far as it can be seen without asking another machine."""

    def find(self, name: str) -> PlacedModel | None: ...


class Places:
    """All that a server may load.

    Args:
        start_model: What the server was started with.
        start_name: What it is called in /v1/models, where that is not its own name.
        texts: Folders, ``s3://BUCKET/PREFIX/``, ``hf://OWNER/`` and single models.

    Raises:
        UsageError: One of them is none of these.
    """

    def __init__(
        self, start_model: str, texts: Iterable[str] = (), *, start_name: str = ""
    ) -> None:
        start = Single(start_model, name=start_name)
        self._places: list[Place] = [start, *(place_of(text) for text in texts)]

    def add(self, models: Iterable[PlacedModel]) -> None:
        """Let single models be loaded too, by the names that they have."""
        self._places += [Single(model.reference, name=model.name) for model in models]

    def as_now(self) -> Places:
        """Return the same places, each folder read once: for many questions in a row."""
        now = copy(self)
        now._places = [one.as_now() if isinstance(one, Folder) else one for one in self._places]
        return now

    def listed(self) -> list[PlacedModel]:
        """Return what can be seen; of two with one name the first counts."""
        found: dict[str, PlacedModel] = {}
        for place in self._places:
            for model in place.listed():
                found.setdefault(model.name, model)
        return list(found.values())

    def find(self, name: str) -> PlacedModel:
        """Return the model that a client means.

        Raises:
            ModelNotAllowedError: No place has it.
        """
        if len(name) <= MAX_NAME and name.isprintable():
            for place in self._places:
                if (found := place.find(name)) is not None:
                    return found
        raise ModelNotAllowedError(
            f"The model '{name[:100]}' is in no place that this server may load from.",
            hint="GET /api/models/search lists what it may; --model-places adds to that.",
            param="model",
        )


class Single:
    """One model, by what the command line calls it, by its last part, or by a name of its own."""

    def __init__(self, reference: str, *, name: str = "") -> None:
        self._reference = reference
        self._name = name or model_name_of(reference)
        self._names = {reference, self._name, model_name_of(reference)}

    def listed(self) -> Iterator[PlacedModel]:
        yield PlacedModel(name=self._name, reference=self._reference)

    def find(self, name: str) -> PlacedModel | None:
        return next(self.listed()) if name in self._names else None


class Folder:
    """The .zse files and checkpoints of a folder, and of the folders in it."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def listed(self) -> Iterator[PlacedModel]:
        yield from islice(self._models(), MAX_LISTED)

    def find(self, name: str) -> PlacedModel | None:
        return self.as_now().find(name)

    def as_now(self) -> _ReadFolder:
        """Return what it holds now."""
        return _ReadFolder(self.listed())

    def _models(self) -> Iterator[PlacedModel]:
        there = chain(self._root.glob("*"), self._root.glob("*/*"))
        for path in sorted(islice(there, MAX_LOOKED_AT)):
            if not self._is_inside(path):
                continue
            name = path.relative_to(self._root).as_posix()
            if path.suffix == SUFFIX and path.is_file():
                size = path.stat().st_size
                yield PlacedModel(name=name, reference=str(path), size_bytes=size)
            elif (path / "config.json").is_file():
                yield PlacedModel(name=name, reference=str(path))

    def _is_inside(self, path: Path) -> bool:
        """Whether it is still in the folder once links are followed."""
        try:
            return path.resolve(strict=True).is_relative_to(self._root.resolve(strict=True))
        except (OSError, RuntimeError):  # a link to nothing, or to itself
            return False


class _ReadFolder:
    """What a folder held when it was read."""

    def __init__(self, models: Iterable[PlacedModel]) -> None:
        self._models = {model.name: model for model in models}

    def listed(self) -> Iterator[PlacedModel]:
        yield from self._models.values()

    def find(self, name: str) -> PlacedModel | None:
        return self._models.get(name) or self._models.get(name + SUFFIX)


class Bucket:
    """The .zse files below a prefix of S3. They are not listed: that would ask another machine."""

    def __init__(self, location: Location) -> None:
        self._bucket, self._prefix = location.bucket, location.key

    def listed(self) -> Iterator[PlacedModel]:
        yield from ()

    def find(self, name: str) -> PlacedModel | None:
        location = _address(name)
        if location is None or location.scheme != "s3" or location.is_prefix:
            return None
        is_here = location.bucket == self._bucket and location.key.startswith(self._prefix)
        if not is_here or not location.key.endswith(SUFFIX):
            return None
        return PlacedModel(name=location.url, reference=location.url)


class HubOwner:
    """The repositories of one owner on the hub."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def listed(self) -> Iterator[PlacedModel]:
        yield from ()

    def find(self, name: str) -> PlacedModel | None:
        location = _address(f"hf://{name}" if is_hub_id(name) else name)
        if location is None or location.scheme != "hf":
            return None
        if location.repository.partition("/")[0] != self._owner:
            return None
        reference = location.url.removesuffix("/")
        return PlacedModel(name=reference.removeprefix("hf://"), reference=reference)


def place_of(text: str) -> Place:
    """Read one entry of ``--model-places``.

    Raises:
        UsageError: It is an address that breaks the rules, or the path of nothing.
    """
    if owner := _OWNER.fullmatch(text):
        return HubOwner(owner[1])
    if is_address(text):
        location = parse_location(text)
        if location.scheme == "s3" and location.is_prefix:
            return Bucket(location)
        return Single(text)
    path = Path(text).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        return Folder(path)
    if path.exists() or text in BUILTIN_MODELS or is_hub_id(text):
        return Single(text)
    raise UsageError(
        f"--model-places names {text!r}, which is not there",
        hint="Name folders, s3://BUCKET/PREFIX/, hf://OWNER/ or single models.",
    )


def _address(text: str) -> Location | None:
    if not is_address(text):
        return None
    try:
        return parse_location(text)
    except ZSEError:
        return None
