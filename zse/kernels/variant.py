"""A compiled form of a kernel, described without compiling it: what a launcher and a builder share.

Nothing here imports triton. A ``Kernel`` names a Triton function and the types of its run-time
arguments; a ``Variant`` fixes its compile-time constants, its warps and its pipeline depth. The
variant's ``key`` names it in a kernel pack.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

from zse.records import record

Constant: TypeAlias = int | float | bool | str

TARGET_CONSTANTS = ("PDL", "PLAIN")
"""Constants that the target decides, not the variant: whether kernels of one stream may overlap
(programmatic dependent launch, sm_90 and later), and whether plain arithmetic stands in for inline
assembly (in the interpreter, and where there is no PTX)."""


@record
class Argument:
    """One run-time argument."""

    name: str
    type: str
    """``*fp32 *fp16 *bf16 *i8 *u8 *i32 *i64`` for addresses, ``i32 i64 fp32`` for numbers."""
    aligned: bool
    """A multiple of 16: an address in bytes, or a number. The compiler relies on it."""

    @property
    def is_pointer(self) -> bool:
        return self.type.startswith("*")


def pointer(name: str, element: str, *, aligned: bool = True) -> Argument:
    """Return an address argument; ``element`` is fp32, bf16, i8 ...; ``aligned``: to 16 bytes."""
    return Argument(name=name, type=f"*{element}", aligned=aligned)


def number(name: str, kind: str = "i32", *, aligned: bool = False) -> Argument:
    """Return a number argument; ``aligned`` promises a multiple of 16."""
    return Argument(name=name, type=kind, aligned=aligned)


@record
class Kernel:
    """One Triton function. Its constants follow its run-time arguments in the signature."""

    name: str
    """Folder and function, for example ``linear.gemv_int4``."""
    module: str
    function: str
    arguments: tuple[Argument, ...]
    """Run-time arguments in the order of the signature."""
    targets: tuple[str, ...] = ()
    """Architectures that it is written for; empty: all."""


@record
class Variant:
    """One compiled form of a kernel."""

    kernel: Kernel
    constants: tuple[tuple[str, Constant], ...]
    """Values of the constants, without those that the target decides."""
    num_warps: int = 4
    num_stages: int = 1
    types: tuple[tuple[str, str], ...] = ()
    """Arguments whose type differs from the kernel's own, for example ("outputs", "*bf16")."""
    targets: tuple[str, ...] = ()
    """Architectures that it is for; empty: all that the kernel is written for."""

    def suits(self, target: str) -> bool:
        """Whether a pack of an architecture has it."""
        return target in (self.targets or self.kernel.targets or (target,))

    @cached_property
    def key(self) -> str:
        """Name of the variant in a pack, for example ``linear.gemv_int4[BN=16,UN=2]w2s1``."""
        inside = ",".join(f"{name}={value}" for name, value in (*self.constants, *self.types))
        return f"{self.kernel.name}[{inside}]w{self.num_warps}s{self.num_stages}"

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Run-time arguments with this variant's types."""
        own = dict(self.types)
        return tuple(
            Argument(name=a.name, type=own.get(a.name, a.type), aligned=a.aligned)
            for a in self.kernel.arguments
        )


def variant(
    kernel: Kernel,
    *,
    num_warps: int = 4,
    num_stages: int = 1,
    types: dict[str, str] | None = None,
    targets: tuple[str, ...] = (),
    **constants: Constant,
) -> Variant:
    """Return a variant; other keyword arguments are its constants.

    Those that are alike are one: a step asks for hundreds, and a variant's key is made once.
    """
    items = tuple(constants.items())
    named = tuple(types.items()) if types else ()
    # 1, 1.0 and True are equal, and are written differently.
    kinds = tuple(map(type, constants.values()))
    identity = (id(kernel), num_warps, num_stages, named, targets, items, kinds)
    found = _MADE.get(identity)
    if found is None:
        found = _MADE[identity] = Variant(
            kernel=kernel,
            constants=items,
            num_warps=num_warps,
            num_stages=num_stages,
            types=named,
            targets=targets,
        )
    return found


_MADE: dict[tuple[object, ...], Variant] = {}
"""Of kernels that live as long as this: their variants hold them."""
