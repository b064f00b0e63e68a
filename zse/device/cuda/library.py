"""The CUDA driver by ctypes: symbols found when first called, every code checked.

``ctypes.CDLL`` lets other threads run while the driver works, so loading and waiting do not stop
the server. Calls that only put work into a stream keep the interpreter instead: they return in
microseconds, while waiting for the next turn takes 50 or more. Nothing here is CUDA's runtime or
toolkit: only ``libcuda``, which the driver brings.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from zse.device.cuda.errors import DEINITIALIZED, FAULT_CODES, CudaRule, error_for
from zse.device.cuda.signatures import BRIEF, SIGNATURES

if TYPE_CHECKING:
    from collections.abc import Callable

Number: TypeAlias = "ctypes.c_int | ctypes.c_size_t | ctypes.c_uint64 | ctypes.c_void_p"
"""What the driver writes one of where it is told to."""
LIBRARY_NAME = "libcuda.so.1"
MINIMUM_VERSION = 12030
"""CUDA 12.3: the first whose graphs keep programmatic dependent launches."""

_GONE_CODES = FAULT_CODES | {DEINITIALIZED}


class Driver:
    """The loaded driver library.

    Raises:
        CudaError: It cannot be loaded.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path or LIBRARY_NAME
        try:
            self._library = ctypes.CDLL(self.path)
            self._brief = ctypes.PyDLL(self.path)
        except OSError as error:
            raise CudaRule.NO_DRIVER(f"no CUDA driver: {error}") from error
        self._functions: dict[str, Callable[..., int]] = {}

    def raw(self, name: str) -> Callable[..., int]:
        """Return a function that gives its code back, for callers that check it themselves.

        Raises:
            CudaError: The library has no such function.
        """
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._resolve(name)
        return function

    def address(self, name: str) -> int:
        """Return where a function lies, for those who call it without Python."""
        return ctypes.cast(self.raw(name), ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            CudaError: It returned a code; the class says which kind.
        """
        code = self.raw(name)(*arguments)
        if code:
            self.fail(name, code)

    def read(self, kind: Callable[[], Number], name: str, *arguments: Any) -> int:
        """Call a function that writes a number where its first argument points; return that.

        The others are ``arguments``; ``kind`` of a handle is ``c_void_p``.
        """
        out = kind()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value or 0

    def release(self, name: str, *arguments: Any) -> None:
        """Call a function that gives something back.

        A lost context takes everything with it, and its loss was told by the call that met it.
        """
        code = self.raw(name)(*arguments)
        if code and code not in _GONE_CODES:
            self.fail(name, code)

    def fail(self, name: str, code: int) -> NoReturn:
        raise error_for(
            name, code, self._text("cuGetErrorName", code), self._text("cuGetErrorString", code)
        )

    def read_version(self) -> int:
        """Return the CUDA version that the driver speaks: 12030 is 12.3."""
        return self.read(ctypes.c_int, "cuDriverGetVersion")

    def version(self) -> int:
        """Return the CUDA version that the driver speaks, if it is enough.

        Raises:
            CudaError: It is below ``MINIMUM_VERSION``.
        """
        found = self.read_version()
        if found < MINIMUM_VERSION:
            raise CudaRule.DRIVER_TOO_OLD(
                f"the NVIDIA driver speaks CUDA {version_text(found)}; "
                f"{version_text(MINIMUM_VERSION)} or newer is needed"
            )
        return found

    def _resolve(self, name: str) -> Callable[..., int]:
        try:
            function = getattr(self._brief if name in BRIEF else self._library, name)
        except AttributeError as error:
            raise CudaRule.DRIVER_TOO_OLD(
                f"{self.path} has no function {name}", function=name
            ) from error
        function.restype = ctypes.c_int
        function.argtypes = SIGNATURES[name]
        resolved: Callable[..., int] = function
        return resolved

    def _text(self, name: str, code: int) -> str:
        text = ctypes.c_char_p()
        known = self.raw(name)(code, ctypes.byref(text)) == 0
        return (text.value or b"").decode("utf-8", "replace") if known else "unknown to the driver"


def version_text(version: int) -> str:
    """Return ``12.3`` for 12030."""
    return f"{version // 1000}.{version % 1000 // 10}"
