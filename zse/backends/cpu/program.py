"""Records what a model's program issues: operations over registers, once, for every step to come.

A handle that the program passes on is the register that a result is in, and a weight is the
structure that the kernels read. The list that comes out is what ``zse_run`` walks.
"""

from __future__ import annotations

import contextlib
import ctypes
from array import array
from ctypes import POINTER, addressof, pointer, sizeof
from typing import TYPE_CHECKING, Any, cast

from zse.backends.operations import EndWeights, LayerWeights, bind_layer
from zse.backends.uncomputed import WithoutDelta, WithoutExperts
from zse.kernels.native import structs
from zse.kernels.native.structs import ACTIVATION_GROUP, Kind, Register

if TYPE_CHECKING:
    from zse.backends.cpu.weights import Weights
    from zse.models.rope import RoPESpec
    from zse.models.spec import AttentionSpec, HeadSpec, LayerSpec, MLPSpec, ModelSpec, NormSpec

ROTARY_REGISTERS = (Register.ROTARY, Register.ROTARY_OTHER)
_PLAIN = frozenset({structs.Scheme.FP32, structs.Scheme.FP16, structs.Scheme.BF16})


class Program:
    """Operations in the order of their execution: those of the layers, then those of the head."""

    def __init__(self, layers: list[structs.Operation], head: list[structs.Operation]) -> None:
        self.num_layers = len(layers)
        self.num_head = len(head)
        self.num_operations = self.num_layers + self.num_head
        self.operations = (structs.Operation * self.num_operations)(*layers, *head)
        first = addressof(self.operations) + self.num_layers * sizeof(structs.Operation)
        self.head = ctypes.cast(first, POINTER(structs.Operation))
        """The head's alone, for more wanted rows than are computed at once."""


class Recorder(WithoutDelta, WithoutExperts):
    """See ``zse.backends.operations.Operations``; the model has been checked.

    Args:
        weights: Of its file.
        spec: The model.
        exact: Never round activations to 8 bits.
    """

    def __init__(self, weights: Weights, spec: ModelSpec, *, exact: bool) -> None:
        assert spec.head.weight is not None
        self._weights = weights
        self._exact = exact
        embedding = weights.matrix(spec.embedding.weight)
        self.ends = EndWeights(
            embedding=embedding,
            final_norm=weights.norm(spec.head.norm),
            head=embedding if spec.is_tied else weights.matrix(spec.head.weight),
        )
        self._scopes = [contextlib.nullcontext(bind_layer(layer, weights)) for layer in spec.layers]
        self._ropes = {rope: Rope(rope) for rope in ropes_of(spec)}
        self._attentions = [
            self._attention(cast("AttentionSpec", layer.mixer)) for layer in spec.layers
        ]
        self._recorded: list[structs.Operation] = []

    def drop(self) -> None:
        """Let go of the weights."""
        self._scopes.clear()
        self._recorded.clear()
        self.ends = EndWeights(embedding=None, final_norm=None, head=None)

    def layer(self, layer: LayerSpec) -> contextlib.AbstractContextManager[LayerWeights]:
        return self._scopes[layer.index]

    def embed(self, _step: object, embedding: structs.Matrix, scale: float) -> Register:
        self._recorded = []
        for rope, register in zip(self._ropes.values(), ROTARY_REGISTERS, strict=False):
            self._record(Kind.ROTARY, register, rope=pointer(rope.structure))
        return self._record(Kind.EMBED, Register.RESIDUAL, matrix=pointer(embedding), scale=scale)

    def norm_linear(
        self, _step: object, residual: Register, norm: structs.Norm | None, linear: structs.Matrix
    ) -> Register:
        assert norm is not None
        return self._norm_multiply(residual, norm, linear, Register.QKV)

    def rope_store(
        self,
        _step: object,
        qkv: Register,
        _attention: AttentionSpec,
        _weights: LayerWeights,
        layer: int,
    ) -> Register:
        attention = pointer(self._attentions[layer])
        return self._record(Kind.ROPE_STORE, qkv, input=qkv, layer=layer, attention=attention)

    def attention(
        self,
        _step: object,
        query: Register,
        _attention: AttentionSpec,
        _weights: LayerWeights,
        layer: int,
    ) -> Register:
        attention = pointer(self._attentions[layer])
        return self._record(
            Kind.ATTEND, Register.MIXED, input=query, layer=layer, attention=attention
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
        group = self._group_of(linear)
        if group and inputs is Register.MIXED:  # the activation quantizes what it writes
            self._record(Kind.QUANTIZE, inputs, input=inputs, quantizes=group, width=linear.columns)
        product: dict[str, Any] = {"input": inputs, "matrix": pointer(linear), "quantizes": group}
        if post_norm is None:
            return self._record(Kind.MULTIPLY_ADD, residual, scale=scale, **product)
        self._record(Kind.MULTIPLY, Register.ADDED, **product)
        width = linear.rows
        normed = self._record(
            Kind.NORM, Register.NORMED, input=Register.ADDED, norm=pointer(post_norm), width=width
        )
        return self._record(Kind.ADD, residual, input=normed, scale=scale, width=width)

    def gate_up(
        self,
        _step: object,
        residual: Register,
        norm: structs.Norm | None,
        linear: structs.Matrix,
        mlp: MLPSpec,
    ) -> Register:
        assert norm is not None
        joined = self._norm_multiply(residual, norm, linear, Register.JOINED)
        return self._record(
            Kind.ACTIVATE,
            Register.HIDDEN,
            input=joined,
            activation=structs.Activation[mlp.activation.upper()],
            is_gated=mlp.is_gated,
            quantizes=self._group_of(self._weights.linear(mlp.down)),
            width=linear.rows,
        )

    def lm_head_sample(self, _step: object, _residual: Register, head: HeadSpec) -> Program:
        """Return what was recorded, and the choice of tokens behind it."""
        return self.with_head(head, samples=True)

    def with_head(self, head: HeadSpec, *, samples: bool = False) -> Program:
        """Return what was recorded, and the logits of the wanted rows behind it."""
        layers, self._recorded = self._recorded, []
        # Logits are scaled by scaling what they are products of.
        logits = self._norm_multiply(
            Register.RESIDUAL,
            self.ends.final_norm,
            self.ends.head,
            Register.LOGITS,
            scale=head.logit_scale,
            row_set=structs.RowSet.WANTED,
        )
        if samples:
            width = self.ends.head.rows
            self._record(
                Kind.SAMPLE, logits, input=logits, width=width, row_set=structs.RowSet.WANTED
            )
        return Program(layers, self._recorded)

    def _norm_multiply(
        self,
        residual: Register,
        norm: structs.Norm,
        linear: structs.Matrix,
        output: Register,
        *,
        scale: float = 1.0,
        row_set: structs.RowSet = structs.RowSet.STEP,
    ) -> Register:
        group = self._group_of(linear)
        normed = self._record(
            Kind.NORM,
            Register.NORMED,
            input=residual,
            norm=pointer(norm),
            scale=scale,
            quantizes=group,
            width=linear.columns,
            row_set=row_set,
        )
        return self._record(
            Kind.MULTIPLY,
            output,
            input=normed,
            matrix=pointer(linear),
            quantizes=group,
            row_set=row_set,
        )

    def _record(
        self, kind: Kind, output: Register, *, scale: float = 1.0, **fields: Any
    ) -> Register:
        self._recorded.append(structs.Operation(kind=kind, output=output, scale=scale, **fields))
        return output

    def _group_of(self, matrix: structs.Matrix) -> int:
        """Return the columns of a group of int8 activations; 0 where they stay float32."""
        if self._exact or matrix.scheme in _PLAIN:
            return 0
        return matrix.group or ACTIVATION_GROUP

    def _attention(self, spec: AttentionSpec) -> structs.Attention:
        assert spec.rope is not None

        def optional(norm: NormSpec | None) -> Any:
            return None if norm is None else pointer(self._weights.norm(norm))

        return structs.Attention(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            rotary_dim=spec.rope.rotary_dim,
            window=spec.window or 0,
            scale=spec.scale,
            rotary=ROTARY_REGISTERS[list(self._ropes).index(spec.rope)],
            q_norm=optional(spec.q_norm),
            k_norm=optional(spec.k_norm),
        )


class Rope:
    """Frequencies of one rotation, and the structure that points at them."""

    def __init__(self, spec: RoPESpec) -> None:
        self._frequencies = array("f", spec.inverse_frequencies())
        address, _ = self._frequencies.buffer_info()
        self.structure = structs.Rope(
            frequencies=address, rotary_dim=spec.rotary_dim, factor=spec.factor
        )


def ropes_of(spec: ModelSpec) -> dict[RoPESpec, None]:
    """Return the rotations that layers ask for, in the order in which they appear."""
    ropes = (getattr(layer.mixer, "rope", None) for layer in spec.layers)
    return dict.fromkeys(rope for rope in ropes if rope is not None)
