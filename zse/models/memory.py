"""How much memory a model takes: the only estimate, for every device and scheme.

It is made of shapes, before a byte is loaded, with the formulas by which the backends themselves
reserve memory; what a driver and an interpreter take besides was measured.
"""

from __future__ import annotations

import math
from dataclasses import asdict, field
from typing import TYPE_CHECKING, TypeAlias

from zse.backends.gpu.kv_pool import layout_for
from zse.backends.gpu.plans import StepPlans
from zse.backends.gpu.row_maxima import room_for
from zse.backends.kv_dtypes import dtypes_of
from zse.backends.kv_groups import groups_of, kv_block_bytes
from zse.backends.resident import is_read_whole, scratch_bytes
from zse.backends.states import states_of, states_on_gpu
from zse.device.facts_of_gpus import H100
from zse.errors import UnsupportedModelError
from zse.format.schemes import Scheme, stored_bytes
from zse.kernels.linear.weight import LinearWeight
from zse.models.storage import Storage
from zse.options import LoadOptions, load_options
from zse.records import record
from zse.units import memory_text

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from zse.format.layout import PlannedTensor
    from zse.format.spec import TensorEntry
    from zse.models.spec import ModelSpec

SCHEMES = ("int4", "int8", "bf16")
"""What a checkpoint is estimated at where no scheme is asked for, the smallest first."""
DEFAULT_CONTEXT = 4096
"""Tokens of KV cache that an estimate includes when none are asked for."""
GPU_RUNTIME_BYTES = 400 << 20
"""A context of the driver with its small stacks, the kernels' code and a few captured steps."""
CPU_RUNTIME_BYTES = 96 << 20
"""An interpreter with the engine and the server."""
Stored: TypeAlias = "TensorEntry | PlannedTensor"
"""A tensor as a file has it, or will have it."""
_TYPICAL_GPU = H100
"""How a sequence is split among multiprocessors moves the estimate by a few megabytes."""


@record
class MemoryEstimate:
    """What one model takes at one scheme, in bytes."""

    quantization: str = ""
    context_tokens: int = 0
    """Tokens of KV cache counted; 0 where only the total is known."""
    stored_bytes: int
    """Of the weights in the file."""
    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int
    """Scratch memory of the largest step, tables, the driver or the interpreter."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes

    def __str__(self) -> str:
        total = f"{memory_text(self.total_bytes)} of memory"
        if not self.context_tokens:
            return total
        weights = f"{memory_text(self.weights_bytes)} of {self.quantization} weights"
        return f"{total}: {weights}, {self.context_tokens} tokens of context"

    def to_json(self) -> dict[str, int | str]:
        return {**asdict(self), "total_bytes": self.total_bytes}


@record
class ModelFacts:
    """What is known of a model without loading it."""

    spec: ModelSpec
    tensors: tuple[Stored, ...] = ()
    """Those that are loaded of a .zse file, whose schemes are settled; empty for a checkpoint."""
    stored_bytes: int = 0
    """Of all tensors of the file."""
    stored_quantization: str = ""
    """The scheme that most of the file's bytes have."""
    key_factors: Mapping[int, array[float]] = field(default_factory=dict)
    """Of its keys, by layer; empty where the file's biases were not read."""

    @property
    def plain_quantization(self) -> str:
        """The 16-bit scheme that loses least: the checkpoint's own."""
        return "fp16" if self.spec.dtype == "fp16" else "bf16"

    @property
    def num_parameters(self) -> int:
        """Of what is loaded; a vision tower, or heads that guess further tokens, are not."""
        return sum(math.prod(weight.shape) for weight in self.spec.weights())

    def loaded_as(self, quantization: str) -> Sequence[Stored]:
        """Return what is loaded of the file, or of the one that converting at a scheme makes."""
        if self.tensors:
            return self.tensors
        return list(map(Storage(quantization=quantization).plan_tensor, self.spec.weights()))

    def stored_bytes_as(self, quantization: str) -> int:
        """Return the bytes of all of the file's tensors, or of those that converting makes."""
        if self.tensors:
            return self.stored_bytes
        groups = (*self.spec.groups(), *self.spec.spare_groups())
        plan = Storage(quantization=quantization).plan_tensor
        return sum(_stored_bytes(plan(weight)) for group in groups for weight in group.weights)


def estimate_memory(
    facts: ModelFacts,
    quantization: str,
    *,
    on_gpu: bool,
    context_tokens: int = 0,
    kv_dtype: str = "auto",
) -> MemoryEstimate:
    """Estimate the memory of a model at a scheme, with one sequence of the whole context.

    Args:
        facts: What is known of it.
        quantization: int4, int3, int2, nf4, nl4, mxfp4, int8, fp16 or bf16; of a .zse file it
            is ignored.
        on_gpu: Memory of a GPU; else the most that is resident of a process on a CPU.
        context_tokens: Tokens of KV cache, counted in whole blocks; 0 means the model's context,
            at most 4096.
        kv_dtype: Type of the cached keys and values; auto is bf16 on a GPU, fp16 on a CPU. Layers
            that keep int8 where int4 is asked for, for constants in a file, are counted so where
            the facts have its factors.
    """
    spec = facts.spec
    context = min(context_tokens or DEFAULT_CONTEXT, spec.max_position)
    options = load_options(max_context=context, kv_dtype=kv_dtype)
    tensors = facts.loaded_as(quantization)
    measure = _on_gpu if on_gpu else _on_cpu
    weights, kv, overhead = measure(spec, tensors, options, facts.key_factors)
    return MemoryEstimate(
        quantization=facts.stored_quantization or quantization,
        context_tokens=context,
        stored_bytes=facts.stored_bytes_as(quantization),
        weights_bytes=weights,
        kv_bytes=kv,
        overhead_bytes=overhead,
    )


def estimates_of(
    facts: ModelFacts, *, on_gpu: bool, context_tokens: int = 0, kv_dtype: str = "auto"
) -> list[MemoryEstimate]:
    """Estimate a checkpoint at the usual schemes, a .zse file at the one that it has."""
    schemes = (facts.stored_quantization,) if facts.tensors else SCHEMES
    return [
        estimate_memory(
            facts, scheme, on_gpu=on_gpu, context_tokens=context_tokens, kv_dtype=kv_dtype
        )
        for scheme in schemes
    ]


def _on_gpu(
    spec: ModelSpec,
    tensors: Sequence[Stored],
    options: LoadOptions,
    factors: Mapping[int, array[float]],
) -> tuple[int, int, int]:
    weights = sum(map(_stored_bytes, tensors))
    groups = groups_of(spec, options, num_sequences=1)
    kv_dtype = options.cache.kv_dtype
    kept = kv_dtype if kv_dtype in ("int8", "int4") else "bf16"
    layout = layout_for(spec, kept, groups, factors)
    blocks = layout.block_bytes()
    plans = StepPlans(spec, _linears(tensors), _TYPICAL_GPU, options)
    padding_blocks = sum(blocks)  # of rows that fill up a captured step
    tables = plans.rotary_bytes + plans.counters_bytes + padding_blocks
    tables += room_for(plans.kept_matrices)
    try:
        scratch = plans.largest_scratch_bytes()
    except UnsupportedModelError:  # no kernel multiplies such matrices; loading it will say so
        scratch = 0
    kv = groups.length_bytes(_num_blocks(options), blocks)
    kv += states_on_gpu(spec, options).length_bytes
    return weights, kv, scratch + tables + GPU_RUNTIME_BYTES


def _on_cpu(
    spec: ModelSpec,
    tensors: Sequence[Stored],
    options: LoadOptions,
    factors: Mapping[int, array[float]],
) -> tuple[int, int, int]:
    """Return what is resident: pages of the file that steps read, and what a step computes with."""
    weights = sum(_stored_bytes(tensor) for tensor in tensors if is_read_whole(spec, tensor.name))
    groups = groups_of(spec, options, num_sequences=1)
    blocks = kv_block_bytes(
        spec, groups, options.cache.block_size, dtypes_of(spec, options.cache.kv_dtype, factors)
    )
    overhead = scratch_bytes(spec, options.batch.max_context) + CPU_RUNTIME_BYTES
    kv = groups.length_bytes(_num_blocks(options), blocks)  # as far as touched, as states are
    kv += states_of(spec, options).slot_bytes
    return weights, kv, overhead


def _num_blocks(options: LoadOptions) -> int:
    return -(-options.batch.max_context // options.cache.block_size)


def _stored_bytes(tensor: Stored) -> int:
    return stored_bytes(tensor.scheme, tensor.shape, tensor.group_size)


def _linears(tensors: Sequence[Stored]) -> dict[str, LinearWeight]:
    return {
        tensor.name: LinearWeight(
            scheme=str(tensor.scheme),
            rows=tensor.shape[0],
            columns=tensor.shape[1],
            group_size=tensor.group_size,
            weights=0,
        )
        for tensor in tensors
        if len(tensor.shape) == 2 and tensor.scheme is not Scheme.FP32
    }
