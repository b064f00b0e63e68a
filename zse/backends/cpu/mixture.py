"""Records mixtures of experts: routing, the chosen experts, the one of every token, and the sum."""

from __future__ import annotations

import ctypes
from ctypes import pointer
from typing import TYPE_CHECKING, Any

from zse.backends.cpu.described import activation_of, experts_of
from zse.kernels.native.codes import Kind, Register, RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.cpu.recording import Recording
    from zse.backends.handles import ExpertWeights
    from zse.kernels.native import structs
    from zse.models.layer_spec import ExpertsSpec
    from zse.models.spec import ModelSpec


class MixtureRecorder:
    """The operations of ``zse.backends.operations.Operations`` that add up what layers add."""

    def __init__(self, recording: Recording, spec: ModelSpec) -> None:
        self._recording = recording
        self._stream_columns = spec.hidden_size

    def experts(
        self, _step: object, residual: Register, weights: ExpertWeights, experts: ExpertsSpec
    ) -> Register:
        recording, hidden = self._recording, self._stream_columns
        inputs = recording.normed(residual, weights.norm, Register.NORMED, weights.up)
        rules = pointer(experts_of(experts, weights))
        self._route(residual, inputs, weights, rules)
        self._multiply_chosen(inputs, weights, experts, rules)
        mixture = Register.MIXTURE
        recording.record(Kind.COMBINE, mixture, input=Register.CHOSEN, width=hidden, experts=rules)
        self._add_shared(inputs, weights, experts)
        recording.add_up(mixture, hidden)
        return recording.normed_in_place(mixture, weights.post_norm, hidden)

    def dense(
        self,
        _step: object,
        inputs: Register,
        linear: structs.Matrix,
        post_norm: structs.Norm | None,
    ) -> Register:
        added = self._recording.multiply(inputs, linear, Register.ADDED)
        self._recording.add_up(added, self._stream_columns)
        return self._recording.normed_in_place(added, post_norm, self._stream_columns)

    def add(
        self,
        _step: object,
        residual: Register,
        added: Sequence[Register],
        scale: float,
        post_norm: structs.Norm | None,
    ) -> Register:
        recording, width = self._recording, self._stream_columns
        total, *others = added
        for other in others:
            recording.record(Kind.ADD, total, input=other, width=width)
        recording.normed_in_place(total, post_norm, width)
        return recording.record(Kind.ADD, residual, input=total, scale=scale, width=width)

    def scale_stream(self, _step: object, residual: Register, factor: int) -> Register:
        scale = ctypes.c_float.from_address(factor).value
        return self._recording.record(Kind.SCALE, residual, scale=scale, width=self._stream_columns)

    def norm_stream(self, _step: object, residual: Register, norm: structs.Norm) -> Register:
        return self._recording.normed_in_place(residual, norm, self._stream_columns)

    def _route(
        self,
        residual: Register,
        inputs: Register,
        weights: ExpertWeights,
        rules: ctypes._Pointer[structs.Experts],
    ) -> None:
        recording, router = self._recording, weights.router
        if weights.router_norm is not None:
            inputs = recording.normed(residual, weights.router_norm, Register.SHARED, router)
        recording.multiply(inputs, router, Register.ROUTER)
        recording.record(Kind.ROUTE, Register.CHOICES, experts=rules)
        recording.record(Kind.SORT, Register.RUNS, experts=rules)

    def _multiply_chosen(
        self,
        inputs: Register,
        weights: ExpertWeights,
        experts: ExpertsSpec,
        rules: ctypes._Pointer[structs.Experts],
    ) -> None:
        recording, up, down = self._recording, weights.up, weights.down
        group, chosen = recording.quantized(inputs, up), Register.CHOSEN
        of_chosen: dict[str, Any] = {"row_set": RowSet.CHOSEN, "experts": rules}
        recording.record(
            Kind.GATHER, chosen, input=inputs, quantizes=group, width=up.columns, experts=rules
        )
        joined = recording.record(
            Kind.EXPERTS,
            Register.CHOSEN_JOINED,
            input=chosen,
            matrix=pointer(up),
            quantizes=group,
            experts=rules,
        )
        recording.adapt(inputs, up, joined, **of_chosen)
        hidden = recording.activate(
            joined,
            Register.CHOSEN_HIDDEN,
            {**activation_of(experts.expert), **of_chosen},
            width=up.rows // experts.num_experts,
            reader=down,
        )
        recording.record(
            Kind.EXPERTS,
            chosen,
            input=hidden,
            matrix=pointer(down),
            quantizes=recording.group_of(down),
            experts=rules,
        )
        recording.adapt(hidden, down, chosen, **of_chosen)

    def _add_shared(self, inputs: Register, weights: ExpertWeights, experts: ExpertsSpec) -> None:
        """Record the expert of every token, added to the others, times its gate if it has one."""
        if experts.shared is None:
            return
        recording, mixture = self._recording, Register.MIXTURE
        up, down, gate = weights.shared_up, weights.shared_down, weights.shared_gate
        assert up is not None
        assert down is not None
        joined = recording.multiply(inputs, up, Register.JOINED)
        if gate is not None:
            recording.multiply(inputs, gate, Register.SHARED_GATE)
        hidden = recording.activate(
            joined, Register.HIDDEN, activation_of(experts.shared), width=up.rows, reader=down
        )
        if gate is None:
            recording.multiply(hidden, down, mixture, kind=Kind.MULTIPLY_ADD)
            return
        shared = recording.multiply(hidden, down, Register.SHARED)
        recording.record(Kind.ADD_GATED, mixture, input=shared, width=self._stream_columns)
