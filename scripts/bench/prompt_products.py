"""Products of 8-bit numbers and what stands between them: what ``prompt_kernels.py`` times."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from zse.kernels.gate_up.variants import silu_mul_variant
from zse.kernels.layout import Partials, Plain, Turned
from zse.kernels.linear.definitions import (
    MATMUL_8BIT_APART,
    MATMUL_8BIT_SPLIT,
)
from zse.kernels.linear.variants import matmul_8bit, matmul_8bit_apart, turn_tokens
from zse.kernels.turned.variants import (
    GATES_EXTRA,
    REST_GROUPS,
    gates_variant,
    round_variant,
    turned_norm_variant,
    turned_silu_variant,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prompt_kernels import Report

    from zse.kernels.variant import Variant

MATRICES = {
    "qkv": (4608, 3584),
    "o": (3584, 3584),
    "gate_up": (37888, 3584),
    "down": (3584, 18944),
}
HIDDEN, WIDTH = 3584, 18944
FEW_FORMS = [
    {"bm": 128, "bn": 128, "stages": 3},
    {"bm": 128, "bn": 64, "stages": 4},
]
GATED = (4, 8, 16)
"""Tiles of tokens that share one of gates."""
ROUNDS = [(2048, 4), (4096, 4), (4096, 8), (8192, 8)]
"""Columns and warps of programs that round."""


def many_forms(output: str) -> Iterator[Variant]:
    for grouped in (4, 8, 16):
        yield matmul_8bit_apart(output, grouped=grouped)
    yield matmul_8bit(output, kernel=MATMUL_8BIT_SPLIT)


def few_forms(output: str) -> list[Variant]:
    return [matmul_8bit_apart(output)] + [
        matmul_8bit(output, **options, kernel=MATMUL_8BIT_SPLIT) for options in FEW_FORMS
    ]


def product_forms() -> Iterator[Variant]:
    """Every form that is timed."""
    for output in ("bf16", "fp32"):
        yield from many_forms(output)
        yield from few_forms(output)
    yield from (turned_silu_variant(256, num_warps=warps) for warps in (8, 16))
    yield from (turned_norm_variant(32, num_warps=warps) for warps in (4, 8, 16))
    yield silu_mul_variant(8, element="bf16", quantized=False)
    yield from (turn_tokens(columns) for columns in (HIDDEN, WIDTH))
    for extra, rest in ((0, 0), (GATES_EXTRA, REST_GROUPS[0])):
        yield from (gates_variant(extra=extra, grouped=grouped) for grouped in GATED)
        for columns, warps in ROUNDS:
            yield round_variant(rest=rest, columns=columns, num_warps=warps)


def products(launcher: Any, report: Report) -> None:
    for tokens in (8192, 2048, 512, 256, 128, 64):
        for name in MATRICES:
            forms_of_product(launcher, report, tokens, name)


def forms_of_product(launcher: Any, report: Report, tokens: int, name: str) -> None:
    import torch

    few = "few" if tokens <= 256 else "many"
    if not report.wants(f"product {few} {tokens} {name}"):
        return
    rows, columns = MATRICES[name]
    values, weights = (
        torch.randint(-99, 99, (count, columns), dtype=torch.int8, device="cuda")
        for count in (tokens, rows)
    )
    scales = torch.rand(max(rows, tokens), device="cuda") + 0.5
    wanted = torch._int_mm(values, weights.T).float()
    wanted *= scales[:tokens, None] * scales[None, :rows]
    output = "bf16" if name == "gate_up" else "fp32"
    for form in list(many_forms(output)) if tokens > 256 else few_forms(output):
        is_split = form.kernel is MATMUL_8BIT_SPLIT and tokens <= 512 and output == "fp32"
        for splits in (2, 4, 8) if is_split else (1,):
            constants = dict(form.constants)
            kind = form.kernel.name.removeprefix("linear.matmul_8bit").strip("_") or "plain"
            sizes = "x".join(str(constants[each]) for each in ("BM", "BN", "STAGES"))
            sizes += f" grouped {constants['GROUPED']}"
            work = partial(time_product, launcher, form, splits, values, weights, scales, wanted)
            report.part(f"product {few} {tokens} {name} {kind} {sizes} /{splits}", work)


def time_product(
    launcher: Any, form: Variant, splits: int, values: Any, weights: Any, scales: Any, wanted: Any
) -> dict[str, float]:
    import torch
    from gpu_timing import graph_us

    (tokens, columns), rows = values.shape, len(weights)
    constants = dict(form.constants)
    programs = -(-tokens // int(constants["BM"])) * -(-rows // int(constants["BN"]))
    if form.kernel is MATMUL_8BIT_APART:
        programs = min(programs, launcher.device.multiprocessors)
    dtype = torch.float32 if dict(form.types)["outputs"] == "*fp32" else torch.bfloat16
    result = torch.zeros(splits, tokens, rows, dtype=dtype, device="cuda")

    def call() -> None:
        launcher.launch(
            form, (programs, splits, 1), values.data_ptr(), scales.data_ptr(), weights.data_ptr(),
            scales.data_ptr(), result.data_ptr(), tokens, rows // 16, columns // 128, rows // 16,
        )  # fmt: skip

    us = graph_us([call], least=8, replays=5)
    error = (result.float().sum(0) - wanted).abs().max() / wanted.abs().max()
    return {"us": us, "TOP/s": 2 * tokens * rows * columns / us / 1e6, "error": float(error)}


def elementwise(launcher: Any, report: Report) -> None:
    for rows in (128, 2048, 8192):
        gates(launcher, report, rows)
        norms(launcher, report, rows)


def timed(call: Callable[[], None], moved_bytes: int) -> dict[str, float]:
    from gpu_timing import graph_us

    us = graph_us([call], least=8, replays=5)
    return {"us": us, "TB/s": moved_bytes / us / 1e6}


def turned_room(rows: int, columns: int) -> tuple[Turned, Any, Any]:
    import torch

    codes = torch.zeros(rows, columns, dtype=torch.int8, device="cuda")
    scales = torch.zeros(rows, device="cuda")
    room = Turned(rows=rows, columns=columns, codes=codes.data_ptr(), scales=scales.data_ptr())
    return room, codes, scales


def gates(launcher: Any, report: Report, rows: int) -> None:
    import torch

    from zse.kernels.gate_up.launch import activate
    from zse.kernels.linear.launch_8bit import turn_activations
    from zse.kernels.turned.launch import turned_silu

    joined = torch.randn(rows, 2 * WIDTH, device="cuda").bfloat16()
    plain = torch.zeros(rows, WIDTH, dtype=torch.bfloat16, device="cuda")
    inputs = Plain(rows=rows, columns=2 * WIDTH, values=joined.data_ptr())
    middle = Plain(rows=rows, columns=WIDTH, values=plain.data_ptr())
    room, codes, _scales = turned_room(rows, WIDTH)
    moved = joined.numel() * 2 + codes.numel()

    def apart() -> None:
        activate(launcher, inputs, middle)
        turn_activations(launcher, middle, room)

    def together(form: Variant) -> dict[str, float]:
        apart()
        held = codes.int()
        found = timed(lambda: turned_silu(launcher, inputs, room, tuned=form), moved)
        return {**found, "steps off": float((codes.int() - held).abs().max())}

    report.part(f"silu rows {rows} apart", lambda: timed(apart, moved))
    for warps in (8, 16, 32):
        form = turned_silu_variant(256, num_warps=warps)
        report.part(f"silu rows {rows} turned warps {warps}", partial(together, form))


def gated_products(launcher: Any, report: Report) -> None:
    """Gates that leave their product turned, and what rounds them, beside torch's."""
    for tokens in (8192, 2048, 512, 256, 128):
        if report.wants(f"gated {tokens}"):
            case = GatedCase(launcher, tokens)
            for grouped in GATED:
                form = gates_variant(extra=case.extra, grouped=grouped)
                report.part(f"gated {tokens} {form.key}", partial(case.product, form))
            for columns, warps in ROUNDS:
                form = round_variant(rest=case.rest, columns=columns, num_warps=warps)
                report.part(f"gated {tokens} {form.key}", partial(case.rounding, form))


class GatedCase:
    """Gates of a 7B for so many tokens."""

    def __init__(self, launcher: Any, tokens: int) -> None:
        import torch

        from zse.kernels.turned.gates import gates_bytes, gates_tiles

        self.launcher, self.tokens = launcher, tokens
        groups = WIDTH // 128
        self.tiles = gates_tiles(groups, tokens, launcher.device.multiprocessors)
        self.extra = GATES_EXTRA if self.tiles < groups else 0
        self.rest = REST_GROUPS[0] if self.extra else 0
        self.inputs, *self.held = turned_room(tokens, HIDDEN)
        self.weights, *self.rows = turned_room(2 * WIDTH, HIDDEN)
        self.output, self.codes, self.scales = turned_room(tokens, WIDTH)
        for codes, scales in (self.held, self.rows):
            codes.random_(-99, 99)
            scales.uniform_(5e-4, 1.5e-3)
        self.room = torch.zeros(gates_bytes(tokens, WIDTH), dtype=torch.uint8, device="cuda")
        product = torch._int_mm(self.held[0], self.rows[0].T).float()
        gate, up = (product * self.held[1][:, None] * self.rows[1]).chunk(2, -1)
        gated = (gate * gate.sigmoid() * up).bfloat16().float()
        self.wanted = (gated.view(-1, 128) @ signs()).view(tokens, WIDTH)

    def product(self, form: Variant) -> dict[str, float]:
        from gpu_timing import graph_us

        from zse.kernels.turned.gates import turned_gates

        def call() -> None:
            address = self.room.data_ptr()
            turned_gates(self.launcher, self.inputs, self.weights, address, tuned=form)

        call()
        found = self.room[: self.wanted.numel() * 2].view(self.wanted.bfloat16().dtype)
        us = graph_us([call], least=8, replays=5)
        operations = 4 * self.tokens * WIDTH * HIDDEN
        error = self.error(found.float(), self.tiles * 128)  # the others are turned by pieces
        return {"us": us, "TOP/s": operations / us / 1e6, "error": error}

    def rounding(self, form: Variant) -> dict[str, float]:
        from zse.kernels.turned.gates import round_gates

        def call() -> None:
            round_gates(self.launcher, self.room.data_ptr(), self.output, tuned=form)

        found = timed(call, self.wanted.numel() * 3)
        return {**found, "error": self.error(self.codes.float() * self.scales[:, None] * 128)}

    def error(self, found: Any, columns: int = WIDTH) -> float:
        off = (found.view_as(self.wanted) - self.wanted)[:, :columns].abs().max()
        return float(off / self.wanted.abs().max())


def signs() -> Any:
    """Return Hadamard's matrix of 128 columns."""
    import torch

    found = torch.ones(1, 1, device="cuda")
    for _ in range(7):
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)], 0)
    return found


def norms(launcher: Any, report: Report, rows: int) -> None:
    import torch

    from zse.kernels.turned.launch import turned_norm

    stream = torch.randn(rows, HIDDEN, device="cuda")
    added = torch.randn(rows, HIDDEN, device="cuda") * 1e-3
    weight = torch.ones(HIDDEN, device="cuda")
    room, _codes, _scales = turned_room(rows, HIDDEN)
    pending = Partials(rows=rows, columns=HIDDEN, splits=1, values=added.data_ptr())

    def call(form: Variant) -> None:
        turned_norm(
            launcher, stream.data_ptr(), weight.data_ptr(), 1e-6, room, added=pending, tuned=form
        )

    for warps in (4, 8, 16):
        form = turned_norm_variant(32, num_warps=warps)
        work = partial(timed, partial(call, form), rows * HIDDEN * 13)
        report.part(f"norm rows {rows} turned warps {warps}", work)
