"""What torch keeps of a tensor."""

from __future__ import annotations

import pytest

from zse.backends.torch.forms import form_of, kept_bytes
from zse.format.layout import PlannedTensor
from zse.format.schemes import Scheme, stored_bytes


def tensor(scheme: Scheme, *shape: int, group_size: int = 0) -> PlannedTensor:
    return PlannedTensor(name="w", scheme=scheme, shape=shape, group_size=group_size)


@pytest.mark.parametrize(
    ("stored", "upcasts", "packs", "expected"),
    [
        (tensor(Scheme.BF16, 64), False, False, ("vector", 256)),
        (tensor(Scheme.BF16, 64, 32), True, False, ("dense", 8192)),
        (tensor(Scheme.BF16, 64, 32), False, False, ("mapped", 0)),
        (tensor(Scheme.INT8, 64, 32), False, True, ("int8", 64 * 44)),
        (tensor(Scheme.INT8, 64, 32), True, False, ("mapped", 0)),
        (tensor(Scheme.NF4, 64, 64, group_size=64), True, True, ("mapped", 0)),
    ],
)
def test_the_form_follows_from_the_scheme(
    stored: PlannedTensor, upcasts: bool, packs: bool, expected: tuple[str, int]
) -> None:
    form = form_of(stored, upcasts=upcasts, packs_int8=packs)
    assert (form, kept_bytes(stored, form)) == expected


def test_int4_takes_little_more_than_its_file() -> None:
    large = tensor(Scheme.INT4, 1024, 1024, group_size=128)
    in_file = stored_bytes(large.scheme, large.shape, large.group_size)
    assert in_file < kept_bytes(large, "int4") < 1.1 * in_file
