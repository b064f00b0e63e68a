"""The C sources of the kernels, and a digest that tells a library that is older than they are.

An installed zse has libraries and no sources; a checkout has sources and builds its libraries.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zse.kernels.sources import digest_of

if TYPE_CHECKING:
    from zse.kernels.native.instructions import Instructions

KERNELS = Path(__file__).parent.parent
LIBRARIES = Path(__file__).parent / "lib"
"""``<architecture>/libzse-<instructions>.so``, and in a checkout the digests of their sources."""
COMPILER = "0.15.2"
"""Version of ziglang: its clang decides the bytes of a library, and pyproject.toml asks for it."""
GLIBC = "2.17"
"""The oldest that libraries run with; what a newer one added is not used."""
FLAGS = (
    *("-std=gnu17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-g0", "-Inative"),
    "-ffp-contract=on",  # a product and a sum of one expression are fused, whatever is the default
    *("-Wall", "-Wextra", "-Werror", "-Wdate-time", "-DNDEBUG"),
)
LINK_FLAGS = ("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,defs", "-lm", "-lpthread")


def has_sources() -> bool:
    """Whether this is a checkout, or was installed from one."""
    return (KERNELS / "native" / "run.c").is_file()


def sources() -> list[Path]:
    """Return what is compiled, each file by itself."""
    return sorted(KERNELS.glob("*/*.c"))


def headers() -> list[Path]:
    return sorted(KERNELS.glob("*/*.h"))


def source_digest(instructions: Instructions) -> str:
    """Return the SHA-256 of all that decides the bytes of a library."""
    files = [
        (path.relative_to(KERNELS).as_posix(), path.read_bytes())
        for path in (*sources(), *headers())
    ]
    return digest_of([("flags", compiled_with(instructions).encode()), *files])


def compiled_with(instructions: Instructions) -> str:
    """Return the compiler and what it is told, as one text."""
    words = (COMPILER, GLIBC, instructions.compiled_for, *FLAGS, *LINK_FLAGS)
    return " ".join(words)


def library_path(instructions: Instructions) -> Path:
    """Return where a library lies, whether or not it is there."""
    return LIBRARIES / instructions.architecture / instructions.file_name


def digest_path(instructions: Instructions) -> Path:
    return library_path(instructions).with_suffix(".digest")


def is_current(instructions: Instructions) -> bool:
    """Whether a library is there and, in a checkout, made of the sources as they are."""
    if not library_path(instructions).is_file():
        return False
    if not has_sources():
        return True
    try:
        return digest_path(instructions).read_text() == source_digest(instructions)
    except OSError:
        return False
