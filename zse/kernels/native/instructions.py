"""Sets of instructions: one library each, what it is compiled with and what it asks for."""

from __future__ import annotations

from zse.errors import UsageError
from zse.records import record


@record
class Instructions:
    """One set of instructions that the kernels are compiled for."""

    name: str
    """``avx2``; part of the library's name, and what ZSE_CPU_INSTRUCTIONS takes."""
    architecture: str
    """``amd64`` or ``arm64``, as images call it."""
    compiled_for: str
    """The compiler's word for it."""
    features: frozenset[str]
    """Names of ``/proc/cpuinfo`` that a processor must have."""

    @property
    def file_name(self) -> str:
        return f"libzse-{self.name}.so"


_SSE4 = Instructions(
    name="sse4",
    architecture="amd64",
    compiled_for="x86_64_v2",
    features=frozenset(["ssse3", "sse4_1", "sse4_2", "popcnt", "cx16"]),
)
_AVX2 = Instructions(
    name="avx2",
    architecture="amd64",
    compiled_for="x86_64_v3",
    features=_SSE4.features
    | frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}),
)
_AVXVNNI = Instructions(
    name="avxvnni",
    architecture="amd64",
    compiled_for="x86_64_v3+avxvnni",
    features=_AVX2.features | frozenset(["avx_vnni"]),
)
_AVX512 = Instructions(
    name="avx512",
    architecture="amd64",
    compiled_for="x86_64_v4+avx512vnni",
    features=_AVX2.features
    | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"]),
)
_NEON = Instructions(
    name="neon", architecture="arm64", compiled_for="generic", features=frozenset(["asimd"])
)
_DOTPROD = Instructions(
    name="dotprod",
    architecture="arm64",
    compiled_for="generic+v8_2a+dotprod+fullfp16",
    features=_NEON.features
    | frozenset(["crc32", "atomics", "fphp", "asimdhp", "asimdrdm", "asimddp"]),
)
_I8MM = Instructions(
    name="i8mm",
    architecture="arm64",
    compiled_for="generic+v8_2a+dotprod+fullfp16+i8mm",
    features=_DOTPROD.features | frozenset(["i8mm"]),
)
ALL = (_AVX512, _AVXVNNI, _AVX2, _SSE4, _I8MM, _DOTPROD, _NEON)
"""The best of each architecture first; the last of each asks for what all of them have."""


def of_architecture(architecture: str) -> tuple[Instructions, ...]:
    """Return the sets of one architecture, the best first; none where zse has no kernels for it."""
    return tuple(one for one in ALL if one.architecture == architecture)


def instructions_named(name: str) -> Instructions:
    """Return a set by name.

    Raises:
        UsageError: There is none of that name.
    """
    for one in ALL:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in ALL)
    raise UsageError(f"unknown set of instructions {name!r}", hint=f"Use one of {names}.")
