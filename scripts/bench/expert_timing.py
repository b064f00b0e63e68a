"""Times the kernels of a layer of experts for ``kernel_experts.py``; needs torch with CUDA."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from expert_cases import Shape, Stack, inputs_of, make_chosen, make_stack
from gpu_timing import graph_us
from kernel_variants import direct_sweep, grouped_sweep, pair_sweep

from zse.kernels.experts.launch import (
    combine,
    direct_products,
    grouped_products,
    pair_products,
)
from zse.kernels.experts.plan import PairPlan, pair_tile, plan_pairs
from zse.kernels.experts.variants import (
    DIRECT_TILES,
    UNSORTED_PAIRS,
    direct_form,
    grouped_variant,
    is_sorted,
    unsorted_form,
)
from zse.kernels.gate_up.launch import activate
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.route.launch import Pending, Router, RouterMatrix, choose, group_pairs, norm_route

if TYPE_CHECKING:
    from expert_cases import Chosen, Inputs
    from kernels import Report

    from zse.kernels.launcher import Launcher
    from zse.kernels.variant import Variant

PEAK_BYTES = 4.3e12
"""Bytes a second that an H200's memory gives a kernel."""
CHOICES = 24
"""Different choices that are taken in turn, so that weights do not come from the cache."""
MAX_ERROR = 2e-2


class Layer:
    """The experts of one layer, and what is timed of them."""

    def __init__(
        self,
        launcher: Launcher,
        report: Report,
        name: str,
        shape: Shape,
        figures: dict[str, float],
        *,
        sweeps: bool,
    ) -> None:
        self._launcher, self._report, self._name, self._shape = launcher, report, name, shape
        self._figures, self._sweeps = figures, sweeps
        self._up = make_stack(shape, 2 * shape.width, shape.hidden)
        self._down = make_stack(shape, shape.hidden, shape.width)
        widest = max(2 * shape.width, shape.hidden)
        room = 2048 * shape.slots * widest * 2
        self._sums = torch.empty(room, dtype=torch.uint8, device="cuda")

    def few(self, rows: int) -> None:
        """Time the kernels of a decode step of one to four tokens."""
        choices = [make_chosen(self._shape, rows, seed) for seed in range(CHOICES)]
        total = self._norm_route(rows, choices[0])
        for part, stack, is_down in (("up", self._up, False), ("down", self._down, True)):
            inputs = inputs_of(
                rows * self._shape.slots if is_down else rows, stack.weight.columns, quantized=True
            )
            plan = plan_pairs(
                stack.weight, rows * self._shape.slots, self._launcher.device,
                max_splits=1 if is_down else None,
            )  # fmt: skip
            plans = [plan]
            if self._sweeps:
                scheme, group = stack.weight.stack.scheme, stack.weight.stack.group_size
                plans += [
                    PairPlan(variant=form, splits=splits, pairs=plan.pairs, rows=plan.rows)
                    for form in pair_sweep(scheme, group)
                    for splits in ((1,) if is_down else (1, 2))
                ]
            times = [self._time_pairs(part, stack, inputs, choices, p, is_down) for p in plans]
            total += times[0]
            if not is_down:
                total += self._activate(rows * self._shape.slots, plan, quantized=True)
        self._say(f"rows {rows} layer", total, 0.0, "four kernels")

    def some(self, rows: int) -> None:
        """Time the products of a batch by int8 activations, each form of them."""
        choices = [make_chosen(self._shape, rows, seed) for seed in range(8)]
        pairs, scheme = rows * self._shape.slots, self._shape.scheme
        for part, stack, is_down in (("up", self._up, False), ("down", self._down, True)):
            inputs = inputs_of(pairs if is_down else rows, stack.weight.columns, quantized=True)
            forms = [*(direct_form(scheme, bm) for bm in DIRECT_TILES), unsorted_form(scheme)]
            forms += direct_sweep(scheme) if self._sweeps else []
            for form in dict.fromkeys(forms):
                if is_sorted(form) or pairs <= UNSORTED_PAIRS:
                    self._time_direct(part, stack, inputs, choices, form, is_down)
            if not is_down:
                self._activate(
                    pairs, PairPlan(variant=form, splits=1, pairs=pairs, rows=0), quantized=True
                )

    def many(self, rows: int) -> None:
        """Time the kernels of a batch or a prompt."""
        choices = [make_chosen(self._shape, rows, seed) for seed in range(4)]
        total = self._choose(rows, choices[0])
        pairs = rows * self._shape.slots
        for part, stack, is_down in (("up", self._up, False), ("down", self._down, True)):
            inputs = inputs_of(pairs if is_down else rows, stack.weight.columns, quantized=False)
            scheme, group = stack.weight.stack.scheme, stack.weight.stack.group_size
            groups = self._shape.experts + self._shape.shared
            forms = [grouped_variant(scheme, group, bm=pair_tile(pairs, groups))]
            forms += grouped_sweep(scheme, group) if self._sweeps else []
            times = [self._time_groups(part, stack, inputs, choices, f, is_down) for f in forms]
            total += times[0]
            if not is_down:
                total += self._activate(pairs, None, quantized=False)
        total += self._combine(rows, choices[0])
        self._say(f"rows {rows} layer", total, 0.0, f"{rows / total * 1e6 / 1e3:.0f}k tok/s layer")

    # --- single kernels --------------------------------------------------------------------------

    def _time_pairs(
        self,
        part: str,
        stack: Stack,
        inputs: Inputs,
        choices: list[Chosen],
        plan: PairPlan,
        is_down: bool,
    ) -> float:
        def call(chosen: Chosen) -> Partials:
            return pair_products(
                self._launcher, stack.weight, inputs.activation, chosen.choice,
                self._sums.data_ptr(), plan, is_down=is_down,
            )  # fmt: skip

        try:
            found = call(choices[0])
        except Exception as failure:  # noqa: BLE001
            return self._failed(plan.variant.key, failure)
        size = found.splits * found.rows * found.columns
        parts = self._sums.view(torch.float32)[:size].view(found.splits, found.rows, -1)
        error = self._error(
            stack, inputs, choices[0], parts.double().sum(0), quantized=True, weighted=is_down
        )
        us = graph_us([partial(call, chosen) for chosen in choices])
        pairs = sum(chosen.distinct for chosen in choices) / len(choices)
        size_bytes = stack.weight.of(1).size_bytes * pairs
        rows = choices[0].experts.shape[0]
        key = f"splits {plan.splits} error {error:.1e} {plan.variant.key}"
        self._say(f"rows {rows} {part}", us, size_bytes, key)
        return us

    def _time_groups(
        self,
        part: str,
        stack: Stack,
        inputs: Inputs,
        choices: list[Chosen],
        form: Variant,
        is_down: bool,
    ) -> float:
        def call(chosen: Chosen) -> Plain:
            return grouped_products(
                self._launcher, stack.weight, inputs.activation, chosen.choice, chosen.grouping,
                self._sums.data_ptr(), is_down=is_down, tuned=form,
            )  # fmt: skip

        try:
            found = call(choices[0])
        except Exception as failure:  # noqa: BLE001
            return self._failed(form.key, failure)
        out = self._sums.view(torch.bfloat16)[: found.rows * found.columns]
        out = out.view(found.rows, found.columns)
        error = self._error(stack, inputs, choices[0], out, quantized=False, weighted=False)
        us = graph_us([partial(call, chosen) for chosen in choices], least=8)
        pairs = sum(chosen.distinct for chosen in choices) / len(choices)
        rows = choices[0].experts.shape[0]
        rate = 2 * found.rows * found.columns * stack.weight.columns / us / 1e6
        key = f"{rate:.0f} TFLOP/s error {error:.1e} {form.key}"
        self._say(f"rows {rows} {part}", us, stack.weight.of(1).size_bytes * pairs, key)
        return us

    def _time_direct(
        self,
        part: str,
        stack: Stack,
        inputs: Inputs,
        choices: list[Chosen],
        form: Variant,
        is_down: bool,
    ) -> None:
        def call(chosen: Chosen) -> Partials:
            return direct_products(
                self._launcher, stack.weight, inputs.activation, chosen.choice, chosen.grouping,
                self._sums.data_ptr(), form, is_down=is_down,
            )  # fmt: skip

        try:
            found = call(choices[0])
        except Exception as failure:  # noqa: BLE001
            self._failed(form.key, failure)
            return
        size = found.splits * found.rows * found.columns
        parts = self._sums.view(torch.float32)[:size].view(found.splits, found.rows, -1)
        error = self._error(
            stack, inputs, choices[0], parts.double().sum(0), quantized=True, weighted=is_down
        )
        us = graph_us([partial(call, chosen) for chosen in choices], least=16)
        distinct = sum(chosen.distinct for chosen in choices) / len(choices)
        size_bytes = stack.weight.of(1).size_bytes * distinct
        rows = choices[0].experts.shape[0]
        self._say(f"rows {rows} {part} direct", us, size_bytes, f"error {error:.1e} {form.key}")

    def _norm_route(self, rows: int, chosen: Chosen) -> float:
        shape = self._shape
        residual = torch.randn(rows, shape.hidden, device="cuda")
        added = torch.randn(4, rows, shape.hidden, device="cuda")
        norm = torch.ones(shape.hidden, device="cuda")
        router = torch.randn(shape.experts + 32, shape.hidden, device="cuda").bfloat16()
        groups = -(-shape.hidden // 128)
        codes = torch.zeros(rows, shape.hidden, dtype=torch.int8, device="cuda")
        scales, sums = (torch.zeros(rows, groups, device="cuda") for _ in range(2))
        logits = torch.zeros(rows, shape.experts + 1, device="cuda")
        counters = torch.zeros(rows, dtype=torch.int32, device="cuda")
        experts, weights = torch.zeros_like(chosen.experts), torch.zeros_like(chosen.weights)
        target = make_chosen(shape, rows, 0)
        target.experts, target.weights = experts, weights
        gate = router[shape.experts + 16].data_ptr() if shape.shared else 0
        output = Quantized(
            rows=rows, columns=shape.hidden, codes=codes.data_ptr(), scales=scales.data_ptr(),
            sums=sums.data_ptr(),
        )  # fmt: skip
        pending = Pending(
            added=Partials(rows=rows, columns=shape.hidden, splits=4, values=added.data_ptr())
        )
        us = graph_us([
            lambda: norm_route(
                self._launcher, residual.data_ptr(), pending, norm.data_ptr(), 1e-6,
                self._router(), RouterMatrix(weights=router.data_ptr(), gate=gate), output,
                target.choice, logits.data_ptr(), counters.data_ptr(),
            )
        ])  # fmt: skip
        self._say(f"rows {rows} norm_route", us, shape.experts * shape.hidden * 2, "")
        return us

    def _choose(self, rows: int, chosen: Chosen) -> float:
        logits = torch.randn(rows, self._shape.experts, device="cuda")
        inputs = Partials(
            rows=rows, columns=self._shape.experts, splits=1, values=logits.data_ptr()
        )
        target = make_chosen(self._shape, rows, 1)
        us = graph_us([
            lambda: choose(self._launcher, self._router(), inputs, target.choice, None)
        ])  # fmt: skip
        self._say(f"rows {rows} choose", us, 0.0, "")
        sort = graph_us([
            lambda: group_pairs(self._launcher, chosen.choice, target.grouping)
        ])  # fmt: skip
        self._say(f"rows {rows} group", sort, 0.0, "")
        return us + sort

    def _activate(self, pairs: int, plan: PairPlan | None, *, quantized: bool) -> float:
        width = self._shape.width
        inputs: Partials | Plain = Plain(
            rows=pairs, columns=2 * width, values=self._sums.data_ptr()
        )
        if plan is not None:
            inputs = Partials(
                rows=pairs, columns=2 * width, splits=plan.splits, values=self._sums.data_ptr()
            )
        out = inputs_of(pairs, width, quantized=quantized)
        us = graph_us([lambda: activate(self._launcher, inputs, out.activation)])
        self._say(f"pairs {pairs} activate", us, pairs * width * 6, "")
        return us

    def _combine(self, rows: int, chosen: Chosen) -> float:
        shape = self._shape
        residual = torch.randn(rows, shape.hidden, device="cuda")
        pairs = Plain(rows=rows * shape.slots, columns=shape.hidden, values=self._sums.data_ptr())
        us = graph_us([
            lambda: combine(
                self._launcher, residual.data_ptr(), pairs, chosen.choice,
            )
        ])  # fmt: skip
        self._say(f"rows {rows} combine", us, rows * shape.hidden * (2 * shape.slots + 8), "")
        return us

    # --- helpers ---------------------------------------------------------------------------------

    def _router(self) -> Router:
        shape = self._shape
        rules = SimpleNamespace(
            num_experts=shape.experts, experts_per_token=shape.chosen, scoring="softmax",
            num_groups=1, groups_per_token=1, scores_in_group=1, normalizes_weights=True,
            weight_scale=1.0,
        )  # fmt: skip
        return Router(rules=rules, has_shared_slot=bool(shape.shared))

    def _error(
        self,
        stack: Stack,
        inputs: Inputs,
        chosen: Chosen,
        found: torch.Tensor,
        *,
        quantized: bool,
        weighted: bool,
    ) -> float:
        """Return the relative error of the first token's products."""
        slots, rows = chosen.experts.shape[1], []
        own = inputs.exact.shape[0] == chosen.experts.numel()
        for slot in range(slots):
            matrix = stack.matrix(int(chosen.experts[0, slot]), quantized=quantized)
            row = inputs.exact[slot if own else 0] @ matrix.T
            rows.append(row * chosen.weights[0, slot].double() if weighted else row)
        expected = torch.stack(rows)
        first = found[: 1 if weighted else slots].double()
        expected = expected.sum(0, keepdim=True) if weighted else expected
        error = float((first - expected).norm() / expected.norm())
        if not error <= MAX_ERROR:
            self._report.failed = True
            print("WRONG", self._name, error, flush=True)
        return error

    def _failed(self, key: str, failure: Exception) -> float:
        print("FAILED", key, str(failure)[:300], flush=True)
        self._report.add(variant=key, failed=str(failure)[:500])
        return float("nan")

    def _say(self, what: str, us: float, size_bytes: float, rest: str) -> None:
        allowed = size_bytes / PEAK_BYTES * 1e6
        print(
            f"{self._name:16s} {what:18s} {us:8.2f} us, memory {allowed:7.2f} us  {rest}",
            flush=True,
        )
        self._report.add(
            shape=self._name, what=what, microseconds=us, memory_us=allowed, detail=rest
        )
        self._figures.setdefault(f"{self._name} {what}", round(us, 2))
