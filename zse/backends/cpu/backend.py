"""The operations in torch, float32 arithmetic throughout."""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING

import torch

from zse.backends.cpu.attention import attend
from zse.backends.cpu.rotary import RotaryTable, rotate
from zse.backends.cpu.sampling import sample
from zse.backends.cpu.step import CpuStep, build_step
from zse.backends.cpu.weights import Weights
from zse.backends.resident import kv_block_bytes
from zse.backends.types import DeviceUsed, FinishedStep, accepted, logit_rows
from zse.device.probe import probe
from zse.errors import DeviceError
from zse.format.as_torch import bytes_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.cpu.linear import Linear
    from zse.backends.protocol import Forward
    from zse.backends.types import Answers, LogitRows, StepBatch
    from zse.device.probe import DeviceInfo
    from zse.format.reader import ZSEReader
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

_KV_DTYPES = {"auto": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16}
_POOL_SEQUENCES = 16
"""The pool that is chosen for the user holds at most this many sequences of full length."""
_WEIGHT_BYTES_A_THREAD = 8 << 20
"""A thread that has less to read for a token costs more to wake and to wait for than it saves."""


class CPUBackend:
    """See ``zse.backends.protocol.Backend``."""

    looks_ahead = False

    def __init__(self, reader: ZSEReader, spec: ModelSpec, options: LoadOptions) -> None:
        machine = probe()
        weight_bytes = sum(entry.length_bytes for entry in reader.header.tensors)
        torch.set_num_threads(options.device.threads or choose_threads(machine, weight_bytes))
        self.device = DeviceUsed(
            name="cpu",
            hardware=machine.cpu_model,
            instructions=torch.backends.cpu.get_cpu_capability(),
            threads=torch.get_num_threads(),
        )
        self._spec = spec
        self._attention = spec.attention
        self._kv_heads = spec.attention.num_kv_heads
        self._rotated_heads = spec.attention.num_heads + spec.attention.num_kv_heads
        self._eps = spec.head.norm.epsilon
        self.block_size = options.cache.block_size
        if options.cache.kv_dtype not in _KV_DTYPES:
            raise DeviceError(
                f"the CPU keeps no {options.cache.kv_dtype} KV cache",
                hint=f"Choose one of {', '.join(_KV_DTYPES)}.",
            )
        self._kv_dtype = _KV_DTYPES[options.cache.kv_dtype]
        self._block_bytes = kv_block_bytes(spec, self.block_size, options.cache.kv_dtype)
        assert spec.attention.rope is not None
        self._rotary = RotaryTable(spec.attention.rope)
        self._head_norms: dict[tuple[str, str], torch.Tensor] = {}
        self._weights = Weights(reader)
        self.num_blocks = options.cache.num_blocks or self._choose_num_blocks(options)
        self._cache = self.new_cache(self.num_blocks)

    # --- the pass ------------------------------------------------------------------------------

    def submit(self, batch: StepBatch, forward: Forward) -> FinishedStep:
        """Compute one step now."""
        return FinishedStep(answers=forward(self, self.begin(batch)))

    def begin(self, batch: StepBatch, cache: list[torch.Tensor] | None = None) -> CpuStep:
        """Lay out one forward pass."""
        step = build_step(batch, self._cache if cache is None else cache, self._spec.vocab_size)
        end = max(chunk.start_position + chunk.num_tokens for chunk in step.chunks)
        step.rotary = self._rotary.rows(step.positions, end)
        return step

    def embed(self, step: CpuStep, weight: str) -> torch.Tensor:  # noqa: ARG002
        """Return float32 [tokens, hidden]."""
        return self._weights.embedding_rows(step.token_ids)

    def norm_linear(
        self, step: CpuStep, residual: torch.Tensor, norm: str, linear: str, bias: str | None = None
    ) -> torch.Tensor:
        """Return RMSNorm(residual) @ linear^T + bias."""
        outputs = self._multiply(linear, self._norm(residual, norm), step.single_rows)
        return outputs if bias is None else outputs.add_(self._weights.vector(bias))

    def rope_store(
        self,
        step: CpuStep,
        qkv: torch.Tensor,
        layer: int,
        q_norm: str | None = None,
        k_norm: str | None = None,
    ) -> torch.Tensor:
        """Normalize heads if asked, rotate q and k, store k and v; return q."""
        heads = qkv.view(qkv.shape[0], -1, self._attention.head_dim)
        turning = heads[:, : self._rotated_heads]
        if q_norm is not None and k_norm is not None:
            turning = self._normalize(turning, self._head_norm(q_norm, k_norm))
        cosines, sines = step.rotary  # type: ignore[misc]  # set by begin()
        rotated = rotate(turning, cosines, sines)
        query, keys = torch.split(rotated, [self._attention.num_heads, self._kv_heads], 1)
        pool = step.cache[layer].view(-1, 2 * self._kv_heads, self._attention.head_dim)
        stored = torch.cat((keys, heads[:, self._rotated_heads :]), 1)
        pool.index_copy_(0, step.slots, stored.to(pool.dtype))
        return query

    def attention(
        self, step: CpuStep, query: torch.Tensor, layer: int, window: int | None
    ) -> torch.Tensor:
        """Return causal attention [tokens, heads * head_dim]."""
        return attend(step, query.contiguous(), layer, self._kv_heads, window)

    def linear_residual(
        self, step: CpuStep, inputs: torch.Tensor, linear: str, residual: torch.Tensor
    ) -> torch.Tensor:
        """Return residual + inputs @ linear^T, written into ``residual``."""
        return residual.add_(self._multiply(linear, inputs, step.single_rows))

    def gate_up(
        self, step: CpuStep, residual: torch.Tensor, norm: str, linear: str
    ) -> torch.Tensor:
        """Return silu(gate) * up."""
        joined = self._multiply(linear, self._norm(residual, norm), step.single_rows)
        single = step.single_rows
        if joined.shape[0] == 1 or single == 0:
            return _silu_mul(joined)
        # One row at a time: vectorized and scalar exponentials differ in the last bit, and which
        # of them an element gets depends on where it lies in the whole tensor.
        parts = [_silu_mul(row) for row in torch.split(joined[:single], 1)]
        if single < joined.shape[0]:
            parts.append(_silu_mul(joined[single:]))
        return torch.cat(parts)

    def lm_head(
        self, step: CpuStep, residual: torch.Tensor, norm: str, linear: str
    ) -> torch.Tensor:
        """Return float32 logits [wanted rows, vocab]."""
        rows = self._norm(residual[step.wanted_rows], norm)
        return self._weights.linear(linear).all_rows(rows)

    def lm_head_sample(
        self, step: CpuStep, residual: torch.Tensor, norm: str, linear: str
    ) -> Answers:
        """Choose a token for each sampling row."""
        batch = step.batch
        if not step.sampled_rows:
            return [()] * len(batch.chunks)
        rows = self._norm(residual[step.sampled_rows], norm)
        logits = iter(self._weights.linear(linear).each_row(rows))
        return [
            accepted(chunk, [sample(next(logits), how) for how in sampling])
            for chunk, sampling in zip(batch.chunks, batch.sampling, strict=True)
        ]

    # --- memory --------------------------------------------------------------------------------

    def new_cache(self, num_blocks: int) -> list[torch.Tensor]:
        """Return a zeroed cache: [num_blocks, block_size, 2 * kv_heads, head_dim] a layer."""
        shape = (num_blocks, self.block_size, 2 * self._kv_heads, self._attention.head_dim)
        return [_untouched_zeros(shape, self._kv_dtype) for _ in range(len(self._spec.layers))]

    def release_cache(self, cache: list[torch.Tensor]) -> None:
        """Drop a cache of ``new_cache``."""
        cache.clear()

    def copy_block(self, source: int, destination: int) -> None:
        """Copy one KV block of every layer."""
        for pool in self._cache:
            pool[destination].copy_(pool[source])

    def join_rows(self, parts: Sequence[torch.Tensor]) -> LogitRows:
        """Return the rows of parts [n_i, vocab]."""
        return logit_rows(bytes_from(torch.cat(list(parts))), self._spec.vocab_size)

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes held, by use."""
        return {
            "weights": self._weights.kept_bytes,
            "kv_cache": self.num_blocks * self._block_bytes,
        }

    def close(self) -> None:
        """Drop weights and pool."""
        self._weights.clear()
        self._head_norms.clear()
        self._cache = []

    # --- pieces --------------------------------------------------------------------------------

    def _multiply(self, name: str, inputs: torch.Tensor, single_rows: int) -> torch.Tensor:
        linear: Linear = self._weights.linear(name)
        if single_rows == inputs.shape[0]:
            return linear.each_row(inputs)
        if single_rows == 0:
            return linear.all_rows(inputs)
        return torch.cat(
            (linear.each_row(inputs[:single_rows]), linear.all_rows(inputs[single_rows:]))
        )

    def _norm(self, residual: torch.Tensor, name: str) -> torch.Tensor:
        return self._normalize(residual, self._weights.vector(name))

    def _normalize(self, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean_square = (values * values).mean(-1, keepdim=True)
        return (values * mean_square.add_(self._eps).rsqrt_()).mul_(weight)

    def _head_norm(self, q_norm: str, k_norm: str) -> torch.Tensor:
        """Return one weight row a head, [heads + kv_heads, head_dim]."""
        joined = self._head_norms.get((q_norm, k_norm))
        if joined is None:
            query = self._weights.vector(q_norm).expand(self._attention.num_heads, -1)
            keys = self._weights.vector(k_norm).expand(self._kv_heads, -1)
            joined = self._head_norms[(q_norm, k_norm)] = torch.cat((query, keys))
        return joined

    def _choose_num_blocks(self, options: LoadOptions) -> int:
        block_bytes = self._block_bytes
        available = probe().available_memory_bytes
        if options.cache.kv_bytes > available:
            raise DeviceError(
                f"a KV cache of {options.cache.kv_bytes / 2**30:.1f} GiB was asked for; "
                f"{available / 2**30:.1f} GiB of memory are available",
                hint="Lower --kv-gib (ZSE_KV_GIB), or leave it out: a quarter of what is "
                "available is then the limit.",
            )
        if options.cache.kv_bytes:
            count = options.cache.kv_bytes // block_bytes
        else:
            full = -(-(options.batch.max_context or self._spec.max_position) // self.block_size)
            count = min(available // 4 // block_bytes, full * _POOL_SEQUENCES)
        if count < 1:
            raise DeviceError(
                f"the KV cache has no room for one block of {block_bytes} bytes",
                hint="Give it more memory, or ask for a smaller context.",
            )
        return count


def choose_threads(machine: DeviceInfo, weight_bytes: int) -> int:
    """Return how many threads compute a model best on a machine.

    Args:
        machine: Its cores and its quota.
        weight_bytes: What every token reads.
    """
    return max(1, min(machine.compute_threads, weight_bytes // _WEIGHT_BYTES_A_THREAD))


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that take no memory until they are written.

    ``torch.zeros`` writes every page. The kernel's own zero pages come one by one, as sequences
    reach them: a pool of gigabytes costs what its tokens need.
    """
    length_bytes = math.prod(shape) * dtype.itemsize
    pages = mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def _silu_mul(joined: torch.Tensor) -> torch.Tensor:
    """Return silu(first half of the columns) * second half."""
    gate, up = joined.chunk(2, -1)
    return torch.nn.functional.silu(gate).mul_(up)
