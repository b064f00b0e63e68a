"""GPU architectures that packs are built for, and which device runs code of which."""

from __future__ import annotations

from zse.errors import UsageError
from zse.records import record


@record
class Target:
    """One architecture."""

    name: str
    """``sm_90``; the code is made for ``sm_90a`` where the architecture has such a form."""
    shared_limit_bytes: int
    """Shared memory that one block may ask for."""
    programmatic: bool
    """Whether kernels of one stream may overlap (programmatic dependent launch)."""
    examples: str

    @property
    def number(self) -> int:
        """The compute capability as compilers write it: 90."""
        return int(self.name.removeprefix("sm_"))


def _target(major: int, minor: int, shared_kib: int, examples: str) -> Target:
    return Target(
        name=f"sm_{major}{minor}",
        shared_limit_bytes=shared_kib * 1024,
        programmatic=major >= 9,
        examples=examples,
    )


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _target(8, 0, 163, "A100, A30"),
        _target(8, 6, 99, "A10, A40, RTX 30"),
        _target(8, 9, 99, "L4, L40S, RTX 40"),
        _target(9, 0, 227, "H100, H200, GH200"),
        _target(10, 0, 227, "B200, GB200"),
        _target(12, 0, 99, "RTX 50, RTX PRO 6000"),
    )
}


def target_named(name: str) -> Target:
    """Return a target by name.

    Raises:
        UsageError: There is no such target.
    """
    if name not in TARGETS:
        raise UsageError(
            f"unknown GPU architecture {name!r}", hint=f"Use one of {', '.join(TARGETS)}."
        )
    return TARGETS[name]


def runs_on(code: str, device: str) -> bool:
    """Whether a device of one architecture runs code that was compiled for another.

    Up to sm_89, code runs on later minor versions too. From sm_90 on it is compiled for one
    architecture alone (the ``a`` in sm_90a).
    """
    if code[:-1] == device[:-1] == "sm_8":
        return code <= device
    return code == device


def targets_for(device: str) -> tuple[Target, ...]:
    """Return the targets whose code a device of an architecture runs, the best first."""
    return tuple(target for target in reversed(TARGETS.values()) if runs_on(target.name, device))
