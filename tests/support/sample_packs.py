"""Small kernel packs for tests: real in form, their code is an ELF magic and a few bytes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from zse.format.container import PREFIX_BYTES
from zse.format.header_json import dump_canonical
from zse.kernels.build.writer import CompiledKernel, assemble, pack_bytes, padded
from zse.kernels.catalog import all_variants
from zse.kernels.pack_header import ALIGN
from zse.kernels.targets import TARGETS
from zse.kernels.variant import Kernel, Variant, number, pointer, variant
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def facts(made: Variant, **changes: Any) -> dict[str, Any]:
    """Return the facts of a variant's kernel, as a compiler would leave them."""
    return {
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
    **changes: Any,
) -> bytes:
    """Return a pack with a kernel for each variant; ``changes`` are facts that differ."""
    kernels = [
        CompiledKernel(
            key=made.key,
            facts=facts(made, **changes),
            cubin=b"\x7fELF" + bytes([index]) * (100 + 300 * index),
        )
        for index, made in enumerate(variants, start=1)
    ]
    return pack_bytes(
        TARGETS[target],
        kernels,
        provenance={**PROVENANCE, **(provenance or {})},
        skipped=skipped or {},
    )


def stub_kernel(made: Variant, **changes: Any) -> CompiledKernel:
    """Return a kernel whose code the stub driver loads and, when launched, writes down."""
    sizes = [8 if a.is_pointer or a.type == "i64" else 4 for a in made.arguments] + [8, 8]
    entry = f"{made.kernel.function}_kernel"
    described = {"entry": entry, "shared_bytes": 0, "programmatic": False, **changes}
    return CompiledKernel(
        key=made.key,
        facts=facts(made, **described),
        cubin=f"\x7fELFcc=90;{entry}={','.join(map(str, sizes))}".encode(),
    )


def write_stub_pack(path: Path) -> Path:
    """Write every kernel that zse has, as far as the stub driver is concerned."""
    kernels = [stub_kernel(made) for made in all_variants()]
    path.write_bytes(pack_bytes(TARGETS["sm_90"], kernels, provenance=PROVENANCE, skipped={}))
    return path


def edit_header(pack: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return a pack whose header a function changed in place, with a digest that agrees."""
    document, code = split(pack)
    change(document)  # to what no writer would write, such as half a character
    header = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return assemble(header.encode(), code)


def edit_facts(pack: bytes, index: int, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return a pack in which a function changed the facts of one kernel in place."""
    document, code = split(pack)
    row = document["entries"][index]
    record = json.loads(code[row["offset_bytes"] :][: row["facts_bytes"]])
    change(record)
    return replace_facts(pack, index, dump_canonical(record))


def replace_facts(pack: bytes, index: int, raw: bytes) -> bytes:
    """Return a pack in which one kernel has other bytes as its facts; every digest agrees."""
    document, code = split(pack)
    slots = []
    for number_of, row in enumerate(document["entries"]):
        slot = code[row["offset_bytes"] :]
        facts_bytes, code_bytes = row["facts_bytes"], row["code_bytes"]
        own = raw if number_of == index else slot[:facts_bytes]
        cubin = slot[align_up(facts_bytes, ALIGN) :][:code_bytes]
        slots.append(padded(own) + cubin)
        row.update(
            facts_bytes=len(own),
            sha256=hashlib.sha256(slots[-1]).hexdigest(),
            offset_bytes=sum(len(padded(before)) for before in slots[:-1]),
        )
    return assemble(dump_canonical(document), b"".join(map(padded, slots)))


def split(pack: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header's document and everything behind it."""
    length = int.from_bytes(pack[8:16], "little")
    document = json.loads(pack[PREFIX_BYTES : PREFIX_BYTES + length])
    return document, pack[align_up(PREFIX_BYTES + length, ALIGN) :]
