"""Records: frozen dataclasses that cost nothing to define.

The standard decorator writes six methods as text and compiles them, for every class: of a server's
imports that was a third. A record has the same fields, so ``replace``, ``asdict`` and ``fields``
work on it, but shares its methods with all others.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable

_Class = TypeVar("_Class", bound=type)


class _Shape:
    """What the shared methods need to know of a class."""

    __slots__ = ("defaults", "factories", "is_checked", "key", "names", "num_names", "shown")

    def __init__(self, cls: type) -> None:
        found = fields(cls)
        for entry in found:
            if not entry.init or entry.hash is not None:
                raise TypeError(f"{cls.__name__}.{entry.name}: init and hash are as in all records")
        self.names = frozenset(entry.name for entry in found)
        self.num_names = len(found)
        self.shown = tuple(entry.name for entry in found if entry.repr)
        self.defaults = {e.name: e.default for e in found if e.default is not MISSING}
        self.factories: tuple[tuple[str, Callable[[], Any]], ...] = tuple(
            (entry.name, entry.default_factory)
            for entry in found
            if entry.default_factory is not MISSING
        )
        compared = [entry.name for entry in found if entry.compare]
        get = attrgetter(*compared) if compared else _nothing
        self.key: Callable[[Any], Any] = get if len(compared) != 1 else lambda one: (get(one),)
        self.is_checked = hasattr(cls, "__post_init__")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: _Class) -> _Class:
    """Make a class a record: its annotated names become fields, given by name and never changed.

    Like ``dataclass(frozen=True, kw_only=True)``; ``field`` and ``__post_init__`` work as there,
    ``InitVar``, ``field(init=...)`` and ``field(hash=...)`` do not, and a subclass is a record too
    or an ordinary class.
    """
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # or the standard decorator would work out a signature
    written = vars(cls).get("__annotations__", {})
    # The standard decorator searches each text for three words, which takes it half of its time.
    cls.__annotations__ = {
        name: object if isinstance(kind, str) and "Var" not in kind else kind
        for name, kind in written.items()
    }
    dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)
    cls.__annotations__ = written
    for entry in fields(cls):
        entry.type = written.get(entry.name, entry.type)
    methods = {
        "__record__": _Shape(cls),
        "__init__": _init,
        "__repr__": _repr,
        "__eq__": _eq,
        "__hash__": _hash,
        "__setattr__": _refuse_to_set,
        "__delattr__": _refuse_to_delete,
    }
    for name, method in methods.items():
        if vars(cls).get(name) is None:  # an ``__eq__`` of its own leaves None as ``__hash__``
            setattr(cls, name, method)
    return cls


def _init(self: Any, **values: Any) -> None:
    shape: _Shape = self.__record__
    state = self.__dict__
    if len(values) != shape.num_names:  # those made in every step give all of them
        state.update(shape.defaults)
        for name, make in shape.factories:
            if name not in values:
                state[name] = make()
    state.update(values)
    if state.keys() != shape.names:
        raise _misfit(type(self).__name__, shape.names - state.keys(), values.keys() - shape.names)
    if shape.is_checked:
        self.__post_init__()


def _misfit(name: str, missing: Any, unknown: Any) -> TypeError:
    parts = [
        f"{what} {', '.join(sorted(names))}"
        for what, names in (("lacks", missing), ("knows no", unknown))
        if names
    ]
    return TypeError(f"{name} {' and '.join(parts)}")


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__record__.shown)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    key = self.__record__.key
    return key(self) == key(other)


def _hash(self: Any) -> int:
    return hash(self.__record__.key(self))


def _refuse_to_set(self: Any, name: str, value: object) -> NoReturn:  # noqa: ARG001
    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name} cannot be set")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name} cannot be deleted")


def _nothing(instance: object) -> tuple[()]:  # noqa: ARG001
    return ()
