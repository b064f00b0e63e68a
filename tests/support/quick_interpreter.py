"""Triton's interpreter without work that it repeats: it takes half of the time then.

Around each launch the interpreter puts its own functions in place of the language's. It does so
again at every call of a device function, hundreds of times in a launch, and leaves them there. Here
it does it once in a launch for each module that has such functions.
"""

from __future__ import annotations

import functools
from typing import Any

from triton.runtime import interpreter

_prepared: set[int] = set()
"""Modules, by the identity of their names, whose language is in place in this launch."""


def quicken() -> None:
    """Put the quicker calls in place; twice does nothing."""
    if interpreter.InterpretedFunction.__call__ is _call:
        return
    interpreter.GridExecutor.__call__ = functools.partialmethod(
        _launch, interpreter.GridExecutor.__call__
    )
    interpreter.InterpretedFunction.__call__ = _call
    interpreter._get_np_dtype = functools.partial(_array_type, interpreter._get_np_dtype, {})


def _launch(self: Any, launch: Any, *arguments: Any, **keywords: Any) -> None:
    _prepared.clear()  # the end of the launch before took its functions out
    launch(self, *arguments, **keywords)


def _call(self: Any, *arguments: Any, **keywords: Any) -> Any:
    names = id(self.fn.__globals__)
    if names not in _prepared:
        interpreter._patch_lang(self.fn)
        _prepared.add(names)
    try:
        return self.rewrite()(*arguments, **keywords)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


def _array_type(find: Any, known: dict[str, Any], element: Any) -> Any:
    """Return numpy's type for one of the language; a block has its elements'."""
    name = element.scalar.name
    if name not in known:
        known[name] = find(element)
    return known[name]
