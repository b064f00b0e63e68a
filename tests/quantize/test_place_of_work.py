"""Where a conversion computes: every tensor it makes lies where the rows do, and words are checked.

There may be no GPU here, so another device stands for it: torch's "meta", whose tensors have shapes
alone. An operation over it and the CPU is refused, as one over a GPU and the CPU is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from zse.errors import DeviceError, UsageError
from zse.format.schemes import Scheme, parts_for
from zse.quantize import int4, mxfp4, nf4, nl4, scheme
from zse.quantize.calibrate import grids
from zse.quantize.calibrate.feedback import Feedback, round_with_feedback
from zse.quantize.calibrate.moments import Moments
from zse.quantize.place_of_work import choose_device, made_on, within_memory_of
from zse.quantize.scheme import quantize_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

QUANTIZED = [(Scheme.INT4, 64), (Scheme.NF4, 64), (Scheme.NL4, 16), (Scheme.MXFP4, 32)]
QUANTIZED.append((Scheme.INT8, 0))
ELSEWHERE = torch.device("meta")


@pytest.fixture
def numberless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What looks at numbers, which are not there, looks away."""
    for module in (int4, nf4, nl4, mxfp4, scheme):
        monkeypatch.setattr(module, "check_finite", lambda parts, _scheme: parts)
    monkeypatch.setattr(nl4, "_check_range", lambda _largest: None)
    tables = (nf4._table, nf4._cell_tables, nl4._codes_of_cells, nl4._levels_of_cells)
    yield
    for table in tables:
        table.cache_clear()


@pytest.mark.parametrize(("name", "group_size"), QUANTIZED)
@pytest.mark.usefixtures("numberless")
def test_a_scheme_is_computed_where_the_rows_are(name: Scheme, group_size: int) -> None:
    rows = torch.empty(6, 128, device=ELSEWHERE)
    importance = torch.empty(128, device=ELSEWHERE)
    found = quantize_rows(name, rows, group_size, importance)
    expected = {role: shape for role, _, shape in parts_for(name, (6, 128), group_size)}
    assert {role: tuple(part.shape) for role, part in found.items()} == expected
    assert {part.device for part in found.values()} == {ELSEWHERE}


@pytest.mark.parametrize(
    ("name", "group_size"), [one for one in QUANTIZED if one[0] in grids.SCHEMES]
)
@pytest.mark.usefixtures("numberless")
def test_errors_are_fed_forward_where_the_rows_are(name: Scheme, group_size: int) -> None:
    rows = torch.empty(6, 128, device=ELSEWHERE)
    grid = grids.grid_of(name, quantize_rows(name, rows, group_size), group_size)
    feedback = Feedback(
        order=list(range(127, -1, -1)), factor=torch.empty(128, 128, device=ELSEWHERE)
    )
    codes = round_with_feedback(grid, rows, [feedback])
    assert codes.device == ELSEWHERE
    assert {part.device for part in grid.parts(codes).values()} == {ELSEWHERE}


@pytest.mark.usefixtures("numberless")
def test_moments_are_counted_where_the_inputs_are() -> None:
    moments = Moments(128, is_full=True, device=ELSEWHERE)
    moments.add(torch.empty(3, 128, device=ELSEWHERE))
    (products,) = moments.products()
    assert products.device == ELSEWHERE


@pytest.mark.usefixtures("numberless")
def test_what_is_made_in_a_block_lies_on_its_device() -> None:
    with made_on(ELSEWHERE):
        assert torch.zeros(1).device == torch.tensor([1]).device == ELSEWHERE
        assert torch.zeros(1, device="cpu").device.type == "cpu"
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize(
    "table",
    [nf4._cell_tables, nl4._codes_of_cells, nl4._levels_of_cells],
    ids=lambda one: one.__name__,
)
def test_what_all_streams_read_is_computed_on_the_cpu(table: Any) -> None:
    table.cache_clear()
    with made_on(ELSEWHERE):
        found = table(torch.device("cpu"))
    expected = table.__wrapped__(torch.device("cpu"))
    for one, other in zip(_tensors(found), _tensors(expected), strict=True):
        assert torch.equal(one, other)


def _tensors(found: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match="reaches none"):
        choose_device("cuda:1")
    with pytest.raises(UsageError, match="not known"):
        choose_device("gpu")


def test_a_gpu_without_memory_names_the_way_out() -> None:
    with (
        pytest.raises(DeviceError, match="meta has too little free memory") as caught,
        within_memory_of(ELSEWHERE),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert caught.value.hint is not None
    assert "--device cpu" in caught.value.hint


@pytest.mark.gpu
@pytest.mark.parametrize("has_importance", [False, True], ids=["alike", "by-importance"])
@pytest.mark.parametrize(("name", "group_size"), [*QUANTIZED, (Scheme.INT3, 64), (Scheme.INT2, 32)])
def test_a_gpu_makes_the_bytes_that_the_cpus_make(
    name: Scheme, group_size: int, has_importance: bool
) -> None:
    torch.manual_seed(11)
    wide = torch.distributions.StudentT(3.0).sample((192, 1024)) * 0.02
    rows = torch.cat([wide, torch.randn(192, 1024) * 3e-4, torch.full((1, 1024), 0.5)])
    rows = torch.cat([rows, torch.zeros(1, 1024), wide[:8].bfloat16().float()])
    importance = torch.rand(1024).square() + 1e-3 if has_importance else None
    expected = quantize_rows(name, rows, group_size, importance)
    there = None if importance is None else importance.cuda()
    found = quantize_rows(name, rows.cuda(), group_size, there)
    differing = {role: int((found[role].cpu() != part).sum()) for role, part in expected.items()}
    assert differing == dict.fromkeys(expected, 0)
