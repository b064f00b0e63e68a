"""The tables of NF4, NL4 and MXFP4 in the kernels are those of the file format, PTX included."""

from __future__ import annotations

import re
import struct
from importlib import import_module
from pathlib import Path

import interpreted  # noqa: F401 - chooses the interpreter; before triton
import pytest
import torch
import triton.language as tl

import zse.kernels
from zse.format.mxfp4 import MXFP4_CODES
from zse.format.nf4 import NF4_CODES
from zse.format.nl4 import NL4_CODES
from zse.kernels.linear import tables
from zse.kernels.linear.tables import MXFP4_INT8, NF4_INT8

WORDS = (0x76543210, 0xFEDCBA98, 0x8F3A06D1, 0, 0xFFFFFFFF)
ONES = 0x3F803F80
"""1.0 twice in bfloat16."""
MINUS_ZEROS = 0x80008000


def run(ptx: str, registers: dict[str, int]) -> dict[str, int]:
    """Return the registers after a block of PTX, whose only factors are one."""
    values = dict(registers)

    def permute(low: int, high: int, choices: int) -> int:
        data = struct.pack("<2I", low, high)
        return int.from_bytes([data[choices >> shift & 7] for shift in (0, 4, 8, 12)], "little")

    def times_one(value: int, factor: int, summand: int) -> int:
        assert (factor, summand) == (ONES, MINUS_ZEROS)
        return value

    operations = {
        "mov.b32": lambda a: a,
        "and.b32": lambda a, b: a & b,
        "or.b32": lambda a, b: a | b,
        "shr.u32": lambda a, b: a >> b,
        "prmt.b32": permute,
        "fma.rn.bf16x2": times_one,
    }
    for name, arguments in re.findall(r"([a-z]\S+) ([^;]+);", re.sub(r"\.reg [^;]+;", "", ptx)):
        target, *sources = arguments.split(", ")
        values[target] = operations[name](
            *(values[text] if text in values else int(text, 0) for text in sources)
        )
    return values


def codes_of(word: int) -> list[int]:
    return [word >> shift & 15 for shift in range(0, 32, 4)]


def int8_of(word: int) -> list[int]:
    return list(struct.unpack("<4b", word.to_bytes(4, "little")))


def test_int8_values_are_the_nearest_ones() -> None:
    assert NF4_INT8 == (-112, -78, -59, -44, -32, -21, -10, 0, 9, 18, 28, 38, 49, 63, 81, 112)


def test_int8_values_of_mxfp4_are_exact() -> None:
    assert tuple(value * tables.MXFP4_INT8_SCALE for value in MXFP4_CODES) == MXFP4_INT8


@pytest.mark.parametrize("table", [NF4_INT8, MXFP4_INT8, NL4_CODES])
@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_codes_becomes_int8_in_their_order(word: int, table: tuple[int, ...]) -> None:
    found = run(tables.int8_of_words(table), {"$2": word})
    assert int8_of(found["$0"]) + int8_of(found["$1"]) == [table[c] for c in codes_of(word)]


@pytest.mark.parametrize("table", [NF4_INT8, MXFP4_INT8, NL4_CODES])
@pytest.mark.parametrize("word", WORDS)
def test_bytes_of_codes_become_int8_of_their_low_and_high_halves(
    word: int, table: tuple[int, ...]
) -> None:
    found = run(tables.int8_of_bytes(table), {"$2": word})
    assert int8_of(found["$0"]) == [table[code] for code in codes_of(word)[::2]]
    assert int8_of(found["$1"]) == [table[code] for code in codes_of(word)[1::2]]


@pytest.mark.parametrize("table", [NF4_CODES, MXFP4_CODES, NL4_CODES])
@pytest.mark.parametrize("word", WORDS)
def test_bytes_of_codes_become_bfloat16_of_their_low_and_high_halves(
    word: int, table: tuple[float, ...]
) -> None:
    ptx = tables.bfloat16_of_bytes(table)
    found = run(ptx, {"$4": word, "$5": ONES, "$6": ONES})
    data = struct.pack("<4I", *(found[f"${index}"] for index in range(4)))
    values = torch.frombuffer(bytearray(data), dtype=torch.bfloat16)
    codes = codes_of(word)
    assert values.tolist() == torch.tensor(table)[codes[::2] + codes[1::2]].bfloat16().tolist()


def test_low_and_high_codes_of_pairs_have_scales_of_their_own() -> None:
    ptx = tables.bfloat16_of_bytes(NL4_CODES, in_pairs=True)
    factors = {f"${number}": name for number, name in ((0, "$5"), (1, "$6"), (2, "$7"), (3, "$8"))}
    for target, factor in factors.items():
        assert f"fma.rn.bf16x2 {target}, a, {factor}, none" in ptx


def test_every_table_of_values_in_a_kernel_is_the_one_of_the_format() -> None:
    root = Path(zse.kernels.__file__).parents[2]
    found = [
        value.value
        for path in sorted(root.glob("zse/kernels/**/triton/*.py"))
        for value in vars(
            import_module(".".join(path.relative_to(root).with_suffix("").parts))
        ).values()
        if isinstance(value, tl.constexpr)
        and isinstance(value.value, tuple)
        and len(value.value) == len(NF4_CODES)
        and isinstance(value.value[0], float)
    ]
    assert set(map(tuple, found)) == {NF4_CODES, MXFP4_CODES}
