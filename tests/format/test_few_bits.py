"""Codes of three and of two bits lie in a file as SPEC.md says, and come out as they went in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zse.errors import FormatError
from zse.format.as_torch import unpack_nibbles, widen_codes
from zse.format.few_bits import BITS
from zse.format.schemes import Scheme, code_bits, parts_for, stored_bytes
from zse.quantize.packing import narrow_codes, pack_int4

FEW = sorted(BITS.items())


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(FEW), st.integers(1, 5), st.integers(1, 4), st.sampled_from((32, 64)), st.data()
)
def test_codes_come_out_as_they_went_in(
    scheme: tuple[str, int], rows: int, groups: int, group_size: int, data: st.DataObject
) -> None:
    bits = scheme[1]
    seed = data.draw(st.integers(0, 1 << 20))
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(
        0, 1 << bits, (rows, groups * group_size), dtype=torch.uint8, generator=generator
    )
    stored = narrow_codes(pack_int4(codes, group_size), bits)
    assert stored.shape == (rows, groups * group_size * bits // 8)
    found = unpack_nibbles(widen_codes(stored, bits), group_size).view(codes.shape)
    assert torch.equal(found, codes)


@pytest.mark.parametrize(("scheme", "bits"), FEW)
def test_a_piece_is_the_words_of_the_specification(scheme: str, bits: int) -> None:
    codes = torch.arange(32, dtype=torch.uint8).mul(5).remainder(1 << bits).view(1, 32)
    packed = pack_int4(codes, 32)[0].tolist()
    words = [int.from_bytes(bytes(packed[4 * i : 4 * i + 4]), "little") for i in range(4)]
    low = [word & 0x33333333 for word in words]
    wanted = [low[0] | low[1] << 2, low[2] | low[3] << 2]
    if scheme == "int3":
        wanted.append(sum((word >> 2 & 0x11111111) << i for i, word in enumerate(words)))
    found = bytes(narrow_codes(pack_int4(codes, 32), bits)[0].tolist())
    assert found == b"".join(word.to_bytes(4, "little") for word in wanted)


@pytest.mark.parametrize(("scheme", "bits"), FEW)
def test_every_byte_is_a_code_so_no_file_can_hold_a_wrong_one(scheme: str, bits: int) -> None:
    stored = torch.arange(0, 256, dtype=torch.uint8).repeat(3)[: 96 * bits].view(3, -1)
    codes = unpack_nibbles(widen_codes(stored, bits), 32)
    assert int(codes.max()) == (1 << bits) - 1
    again = narrow_codes(pack_int4(codes.view(3, -1), 32), bits)
    assert torch.equal(again, stored)


def test_a_weight_takes_its_bits_and_a_share_of_its_groups_scale() -> None:
    shape = (64, 4096)
    weights = 64 * 4096
    found = {
        (scheme, size): stored_bytes(scheme, shape, size) * 8 / weights
        for scheme in (Scheme.INT3, Scheme.INT2)
        for size in (64, 32)
    }
    assert list(found.values()) == [3.5, 4.0, 2.5, 3.0]
    assert code_bits(Scheme.INT3) == 3
    assert code_bits(Scheme.NF4) == 4
    with pytest.raises(FormatError, match="group_size 128 of int3"):
        parts_for(Scheme.INT3, shape, 128)
