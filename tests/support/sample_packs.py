"""Small kernel packs for tests: real in form, their code is an ELF magic and a few bytes."""

from __future__ import annotations

import json
from typing import Any

from zse.kernels.build.writer import CompiledKernel, assemble, pack_bytes
from zse.kernels.pack import PREFIX_BYTES, align_up, canonical
from zse.kernels.targets import TARGETS
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

SCALE = Kernel(
    name="sample.scale",
    module="sample_kernels",
    function="scale",
    arguments=(
        pointer("inputs", "fp32"),
        pointer("outputs", "fp32"),
        number("length"),
        number("factor", "fp32"),
    ),
)
VARIANTS: tuple[Variant, ...] = (
    variant(SCALE, BLOCK=128, num_warps=2),
    variant(SCALE, BLOCK=1024),
)
PROVENANCE = {"zse": "0.1.0", "triton": "3.9.0", "ptxas": "12.9.86", "sources": "ab" * 32}


def record(made: Variant, **changes: Any) -> dict[str, Any]:
    """Return the description of a variant's kernel, as a compiler would leave it."""
    return {
        "key": made.key,
        "entry": made.kernel.function,
        "arguments": [[a.name, a.type] for a in made.arguments],
        "aligned": [a.name for a in made.arguments if a.aligned],
        "constants": [[name, value] for name, value in made.constants],
        "num_warps": made.num_warps,
        "num_stages": made.num_stages,
        "num_ctas": 1,
        "shared_bytes": 512,
        "global_scratch_bytes": 0,
        "global_scratch_align": 1,
        "profile_scratch_bytes": 0,
        "programmatic": True,
        "cooperative": False,
        "registers": 26,
        "stack_bytes": 0,
        "trailing_pointers": 2,
    } | changes


def sample_pack(
    target: str = "sm_90",
    *,
    variants: tuple[Variant, ...] = VARIANTS,
    provenance: dict[str, str] | None = None,
    skipped: dict[str, str] | None = None,
) -> bytes:
    """Return a pack with a kernel for each variant."""
    kernels = [
        CompiledKernel(record=record(made), cubin=b"\x7fELF" + bytes([index]) * (100 + 300 * index))
        for index, made in enumerate(variants, start=1)
    ]
    return pack_bytes(
        TARGETS[target],
        kernels,
        provenance={**PROVENANCE, **(provenance or {})},
        skipped=skipped or {},
    )


def edit_header(pack: bytes, change: Any) -> bytes:
    """Return a pack whose header a function changed, with a digest that agrees."""
    length = int.from_bytes(pack[8:16], "little")
    document = json.loads(pack[PREFIX_BYTES : PREFIX_BYTES + length])
    changed = change(document)
    document = document if changed is None else changed
    return assemble(canonical(document), pack[align_up(PREFIX_BYTES + length) :])
