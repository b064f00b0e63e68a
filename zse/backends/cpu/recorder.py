"""Records what a model's program issues: operations over registers, once, for every step to come.

A handle that the program passes on is the register that a result is in, and a weight is the
structure that the kernels read. The list that comes out is what ``zse_run`` walks.
"""

from __future__ import annotations

import contextlib
from ctypes import pointer
from typing import TYPE_CHECKING

from zse.backends.adapters import adapted_matrices
from zse.backends.binding import bind_classifier, bind_layer, bind_layer_inputs
from zse.backends.cpu.described import (
    ROTARY_REGISTERS,
    Rope,
    activation_of,
    attention_of,
    delta_of,
    ropes_of,
)
from zse.backends.cpu.embedding import Embedding
from zse.backends.cpu.latent import record_queries, record_values
from zse.backends.cpu.mixture import MixtureRecorder
from zse.backends.cpu.program import Program
from zse.backends.cpu.recording import LowRankProducts, Recording
from zse.backends.cpu.stretches import MarkedLayer, Stretches
from zse.backends.cpu.token_states import NORMED_STATES
from zse.backends.handles import EndWeights, LayerWeights, MedusaWeights
from zse.backends.key_factors import key_factors
from zse.backends.kv_dtypes import dtypes_of, is_narrow
from zse.backends.operations import is_attention, kept_by
from zse.kernels.native import codes, structs
from zse.kernels.native.codes import Kind, Register, RowSet
from zse.stream.fit import LAYER_PREFIX

if TYPE_CHECKING:
    from zse.backends.cpu.pacing import PacedWeights
    from zse.backends.cpu.step import Step
    from zse.backends.cpu.weights import Weights
    from zse.backends.handles import LayerInputsWeights, LayerInputWeights
    from zse.models.layer_spec import (
        AttentionSpec,
        LayerInputSpec,
        LayerSpec,
        LinearAttentionSpec,
        MLPSpec,
    )
    from zse.models.spec import HeadSpec, LayerInputsSpec, ModelSpec


class Recorder(MixtureRecorder):
    """See ``zse.backends.operations.Operations``; the model has been checked.

    Args:
        weights: Of its file.
        spec: The model.
        exact: Never round activations to 8 bits.
        max_rank: Of adapters.
        kv_dtype: Of what is kept of keys and values.
    """

    def __init__(
        self,
        weights: Weights,
        spec: ModelSpec,
        *,
        exact: bool,
        max_rank: int,
        kv_dtype: str = "auto",
    ) -> None:
        super().__init__(Recording(exact=exact, is_part=spec.head.rows is not None), spec)
        self._adapted = adapted_matrices(spec)
        """What adapters may add to."""
        self._low_rank = LowRankProducts.of(self._adapted, weights, max_rank)
        self._weights = weights
        self._vocab_size = spec.vocab_size
        self.ends = self._bind_ends(spec)
        bound = [bind_layer(layer, weights) for layer in spec.layers]
        self._scopes: list[contextlib.AbstractContextManager[LayerWeights]] = [
            contextlib.nullcontext(layer) for layer in bound
        ]
        self._paced: PacedWeights | None = None
        self._ropes = {rope: Rope(rope) for rope in ropes_of(spec)}
        factors = key_factors(spec, weights.numbers) if is_narrow(kv_dtype) else {}
        self._key_factors = factors
        self.kv_dtypes = dtypes_of(spec, kv_dtype, factors)
        """Type of what each layer keeps of keys and values, by its number."""
        self._attentions = {
            layer.index: attention_of(
                layer.mixer,
                handles,
                list(self._ropes),
                self._key_factors.get(layer.index),
                turns_keys=self.kv_dtypes.get(kept_by(layer.mixer, layer.index)) == "int4",
            )
            for layer, handles in zip(spec.layers, bound, strict=True)
            if is_attention(layer.mixer)
        }
        self._deltas = {
            layer.index: delta_of(layer.mixer, handles.delta)
            for layer, handles in zip(spec.layers, bound, strict=True)
            if not is_attention(layer.mixer) and handles.delta is not None
        }

    def _bind_ends(self, spec: ModelSpec) -> EndWeights:
        """Return the weights that belong to no layer, as far as they are here."""
        weights, head, inputs = self._weights, spec.head, spec.embedding.layer_inputs
        place = spec.place
        if place.is_first:
            self._embedding = Embedding(spec.embedding, weights)
        return EndWeights(
            embedding=self._embedding.tokens if place.is_first else None,
            final_norm=weights.norm(head.norm) if place.is_last and head.norm else None,
            head=self._head_matrix(spec) if place.is_last else None,
            classifier=bind_classifier(head.classifier, weights),
            medusa=tuple(
                MedusaWeights(
                    blocks=tuple(map(weights.linear, one.blocks)),
                    matrix=weights.matrix(one.matrix),
                )
                for one in spec.medusa
            ),
            layer_inputs=None
            if inputs is None
            else bind_layer_inputs(inputs, weights.matrix(inputs.table), weights),
        )

    def _head_matrix(self, spec: ModelSpec) -> structs.Matrix | None:
        if spec.head.weight is None:
            return None
        if not spec.is_tied:
            return self._weights.matrix(spec.head.weight)
        if (rows := spec.head.rows) is None:
            is_bound = spec.place.is_first
            table = spec.embedding.weight
            return self._embedding.tokens if is_bound else self._weights.matrix(table)
        return self._weights.rows_of(spec.embedding.weight, rows.first, rows.count)

    def drop(self) -> None:
        """Let go of the weights."""
        self._scopes.clear()
        self._recording.take()
        self.ends = EndWeights(embedding=None, final_norm=None, head=None)

    def is_computed(self, _step: Step) -> bool:
        return False

    def layer(self, layer: LayerSpec) -> contextlib.AbstractContextManager[LayerWeights]:
        return self._scopes[layer.index]

    def embed(self, step: Step | None, _embedding: structs.Matrix, scale: float) -> Register:
        self._begin_recording(step)
        return self._embedding.record(self._recording, scale, width=self._stream_columns)

    def enter_stream(self, step: Step | None) -> Register:
        self._begin_recording(step)
        return Register.RESIDUAL

    def enter_states(self, step: Step | None) -> Register:
        return self.enter_stream(step)

    def add_bent(self, _step: object, residual: Register, linear: structs.Matrix) -> Register:
        recording, width = self._recording, linear.rows
        joined = recording.multiply(residual, linear, Register.JOINED)
        silu = codes.Activation.SILU
        bent = recording.record(
            Kind.ACTIVATE, Register.HIDDEN, input=joined, width=width, activation=silu
        )
        return recording.record(Kind.ADD, residual, input=bent, scale=1.0, width=width)

    def choose_by(
        self, _step: object, residual: Register, matrix: structs.Matrix, _head: HeadSpec
    ) -> Program:
        recording, wanted, width = self._recording, RowSet.WANTED, self._vocab_size
        layers = recording.take()
        logits = recording.multiply(residual, matrix, Register.LOGITS, row_set=wanted)
        recording.record(Kind.SAMPLE, logits, input=logits, width=width, row_set=wanted)
        return Program(layers, recording.take())

    def leave_stream(self, _step: object, _residual: Register) -> Program:
        return Program(self._recording.take(), [], self._stretches())

    def _begin_recording(self, step: Step | None) -> None:
        """Begin a program anew, with the angles that its layers need."""
        recording = self._recording
        recording.take()
        recording.take_marks()
        adapts = step is not None and step.adapters is not None
        recording.low_rank = self._low_rank if adapts else None
        for rope, register in zip(self._ropes.values(), ROTARY_REGISTERS, strict=False):
            recording.record(Kind.ROTARY, register, rope=pointer(rope.structure))

    def layer_inputs(
        self,
        _step: object,
        residual: Register,
        weights: LayerInputsWeights,
        inputs: LayerInputsSpec,
    ) -> Register:
        recording, projection = self._recording, weights.projection
        told = recording.record(
            Kind.EMBED, Register.TOLD, matrix=pointer(weights.table), scale=inputs.scale
        )
        projected = recording.multiply(residual, projection, Register.JOINED)
        return recording.record(
            Kind.ADD_PARTS,
            told,
            input=projected,
            matrix=pointer(projection),
            norm=pointer(weights.norm),
            width=inputs.width,
        )

    def norm_linear(
        self,
        _step: object,
        residual: Register,
        norm: structs.Norm | None,
        linear: structs.Matrix,
    ) -> Register:
        normed = self._recording.normed(residual, norm, Register.NORMED, linear)
        return self._recording.multiply(normed, linear, Register.QKV)

    def rope_store(
        self,
        _step: object,
        qkv: Register,
        _attention: AttentionSpec,
        weights: LayerWeights,
        layer: int,
    ) -> Register:
        recording, attention = self._recording, pointer(self._attentions[layer])
        if weights.latent is not None:
            return record_queries(recording, qkv, weights.latent, layer=layer, attention=attention)
        return recording.record(Kind.ROPE_STORE, qkv, input=qkv, layer=layer, attention=attention)

    def attention(
        self,
        _step: object,
        query: Register,
        attention: AttentionSpec,
        weights: LayerWeights,
        layer: int,
    ) -> Register:
        recording, native = self._recording, pointer(self._attentions[layer])
        output = Register.MIXED if weights.latent is None else Register.WIDE_MIXED
        mixed = recording.record(
            Kind.ATTEND, output, input=query, layer=kept_by(attention, layer), attention=native
        )
        if weights.latent is not None:
            return record_values(recording, layer=layer, attention=native)
        if not attention.is_gated:
            return mixed
        group = recording.group_of(weights.output)
        return recording.record_quantizing(Kind.GATE, mixed, group, input=query, attention=native)

    def delta(
        self,
        _step: object,
        residual: Register,
        weights: LayerWeights,
        _delta: LinearAttentionSpec,
        layer: int,
    ) -> Register:
        recording, parts = self._recording, weights.delta
        assert parts is not None
        inputs = recording.normed(residual, weights.mixer_norm, Register.NORMED, parts.inputs)
        projected = recording.multiply(inputs, parts.inputs, Register.QKV)
        recording.multiply(inputs, parts.gates, Register.DELTA_GATES)
        native = pointer(self._deltas[layer])
        recording.record(Kind.CONVOLVE, projected, layer=layer, delta=native)
        return recording.record(
            Kind.DELTA, Register.MIXED, input=projected, layer=layer, delta=native
        )

    def linear_residual(
        self,
        _step: object,
        inputs: Register,
        linear: structs.Matrix,
        residual: Register,
        scale: float,
        post_norm: structs.Norm | None,
    ) -> Register:
        recording, width = self._recording, linear.rows
        if post_norm is None and not recording.is_part:
            return recording.multiply(inputs, linear, residual, kind=Kind.MULTIPLY_ADD, scale=scale)
        added = recording.multiply(inputs, linear, Register.ADDED)
        recording.add_up(added, width)
        recording.normed_in_place(added, post_norm, width)
        return recording.record(Kind.ADD, residual, input=added, scale=scale, width=width)

    def gate_up(
        self,
        _step: object,
        residual: Register,
        norm: structs.Norm | None,
        linear: structs.Matrix,
        mlp: MLPSpec,
    ) -> Register:
        recording, down = self._recording, self._weights.linear(mlp.down)
        normed = recording.normed(residual, norm, Register.NORMED, linear)
        joined = recording.multiply(normed, linear, Register.JOINED)
        return recording.activate(
            joined, Register.HIDDEN, activation_of(mlp), width=linear.rows, reader=down
        )

    def gate_input(
        self,
        _step: object,
        residual: Register,
        _told: Register,
        weights: LayerInputWeights,
        own: LayerInputSpec,
        layer: int,
    ) -> Register:
        recording, width = self._recording, weights.gate.rows
        assert self.ends.layer_inputs is not None
        gate = recording.multiply(residual, weights.gate, Register.JOINED)
        hidden = recording.record(
            Kind.ACTIVATE,
            Register.HIDDEN,
            input=gate,
            width=width,
            activation=codes.Activation[own.activation.upper()],
        )
        return recording.record_quantizing(
            Kind.TELL,
            hidden,
            recording.group_of(weights.projection),
            layer=layer,
            matrix=pointer(self.ends.layer_inputs.projection),
            width=width,
        )

    def lm_head_sample(self, step: Step | None, residual: Register, head: HeadSpec) -> Program:
        """Return what was recorded, and the choice of tokens behind it."""
        if step is not None and step.leaves_states:
            assert head.norm is not None
            self._recording.record(
                Kind.NORM,
                NORMED_STATES,
                input=residual,
                norm=pointer(self.ends.final_norm),
                width=self._stream_columns,
            )
        return self.with_head(head, samples=True)

    def with_head(self, head: HeadSpec, *, samples: bool = False) -> Program:
        """Return what was recorded, and the logits of the wanted rows behind it."""
        recording, matrix = self._recording, self.ends.head
        layers, stretches = recording.take(), self._stretches()
        wanted = RowSet.WANTED
        # Logits are scaled by scaling what they are products of.
        normed = recording.normed(
            Register.RESIDUAL,
            self.ends.final_norm,
            Register.NORMED,
            matrix,
            scale=head.logit_scale,
            row_set=wanted,
        )
        logits = Register.LOGITS if head.rows is None else Register.OWN_LOGITS
        recording.multiply(normed, matrix, logits, row_set=wanted)
        if head.softcap is not None:
            recording.record(
                Kind.CAP, logits, scale=head.softcap, width=matrix.rows, row_set=wanted
            )
        if head.rows is not None:
            logits, samples = recording.collect(head.rows), samples and head.rows.first == 0
        if samples:
            width = self._vocab_size
            recording.record(Kind.SAMPLE, logits, input=logits, width=width, row_set=wanted)
        return Program(layers, recording.take(), stretches)

    def pace(self, paced: PacedWeights) -> None:
        """Have the layers that stream waited for, and let go."""
        self._paced = paced
        for index, scope in enumerate(self._scopes):
            number = paced.number_of(f"{LAYER_PREFIX}{index}")
            if number is not None:
                self._scopes[index] = MarkedLayer(self._recording, number, scope.__enter__())

    def _stretches(self) -> Stretches | None:
        marks = self._recording.take_marks()
        return Stretches(self._paced, marks) if self._paced is not None and marks else None
