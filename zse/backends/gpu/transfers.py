"""Pinned memory between host and device: inputs on their way down, sampled tokens on their way up.

Each direction is a small ring, because the host prepares one step while the device works on
another. An event tells when a buffer may be used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from zse.backends.types import SampledToken, accepted
from zse.kernels.layout import MAX_ALTERNATIVES
from zse.kernels.lm_head_sample.arrays import SampledArrays
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.gpu.step import StepPlan
    from zse.backends.types import Answers
    from zse.device.gpu import Block, Event, Gpu, HostBlock, Stream

RING = 3
"""Two steps in flight, and one that is being written or read."""


class GrowingBuffer:
    """A pinned buffer that is replaced by a larger one when more is asked for than it holds."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._block: HostBlock | None = None

    def of(self, length_bytes: int) -> HostBlock:
        """Return at least so many bytes; no transfer may use the buffer that was there before.

        Raises:
            DeviceError: So much cannot be pinned; the next call tries again.
        """
        block = self._block
        if block is None or block.length_bytes < length_bytes:
            self._block = None  # what is freed must not be used again if there is no larger one
            if block is not None:
                block.free()
            block = self._block = self._gpu.allocate_host(_rounded(length_bytes))
        return block


class StagingRing:
    """Host buffers for what goes to the device."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._buffers = [GrowingBuffer(gpu) for _ in range(RING)]
        self._acquired: HostBlock | None = None
        self._events: list[Event | None] = [None] * RING
        self._next = 0

    def acquire(self, length_bytes: int) -> HostBlock:
        """Return a buffer that no transfer reads any more."""
        event = self._events[self._next]
        if event is not None:
            event.synchronize()
        self._acquired = self._buffers[self._next].of(length_bytes)
        return self._acquired

    def send(self, destination: int, length_bytes: int, stream: Stream) -> None:
        """Copy the acquired buffer to the device, and move on to the next one."""
        index, buffer = self._next, self._acquired
        assert buffer is not None, "acquire comes first"
        self._gpu.copy_to_device(destination, buffer.address, length_bytes, stream)
        event = self._events[index] = self._events[index] or self._gpu.create_event()
        event.record(stream)
        self._next = (index + 1) % RING


@record
class Told:
    """States that a step tells the host besides its tokens, where they are asked for."""

    sampled: DeviceRows | None = None
    """Of rows that are sampled: what their tokens are chosen from."""
    left: DeviceRows | None = None
    """Of all its tokens."""


@record
class DeviceRows:
    """bfloat16 [rows, columns] in the device's memory."""

    address: int
    rows: int
    columns: int

    @property
    def length_bytes(self) -> int:
        return 2 * self.rows * self.columns


class SampledMemory:
    """Where sampled tokens are written on the device.

    It remembers the last token of ``max_slots`` sequences; one slot more is for padding.
    """

    def __init__(self, gpu: Gpu, *, max_rows: int, max_slots: int, stream: Stream) -> None:
        sizes = (max_rows, max_rows, max_rows * MAX_ALTERNATIVES, max_rows * MAX_ALTERNATIVES)
        self.offsets = [0]
        for count in sizes:
            self.offsets.append(self.offsets[-1] + align_up(count * 4, 256))
        last_tokens_bytes = align_up((max_slots + 1) * 4, 256)
        self._device: Block = gpu.allocate(self.offsets[-1] + last_tokens_bytes)
        self.address = self._device.address
        gpu.fill(self.address, 0, self._device.length_bytes, stream)
        tokens, logprobs, top_tokens, top_logprobs, last = (
            self.address + offset for offset in self.offsets
        )
        self.arrays = SampledArrays(
            tokens=tokens,
            last_tokens=last,
            logprobs=logprobs,
            top_tokens=top_tokens,
            top_logprobs=top_logprobs,
        )

    @property
    def length_bytes(self) -> int:
        """Bytes of a step's tokens with all that is told of them."""
        return self.offsets[-1]


NOTHING = Told()


class ResultRing:
    """The way of sampled tokens to the host.

    ``check`` is called when a step has ended, before its tokens are believed; ``count`` steps may
    be on their way, or be read.
    """

    def __init__(
        self,
        gpu: Gpu,
        memory: SampledMemory,
        *,
        check: Callable[[], None] = lambda: None,
        count: int = RING,
    ) -> None:
        self._gpu = gpu
        self._check = check
        self._device = memory
        self._offsets = memory.offsets
        self._hosts = [gpu.allocate_host(memory.length_bytes) for _ in range(count)]
        self._hidden_hosts = [GrowingBuffer(gpu) for _ in range(count)]
        self._left_hosts = [GrowingBuffer(gpu) for _ in range(count)]
        self._events = [gpu.create_event() for _ in range(count)]
        self._next = 0

    def widen(self, in_flight: int) -> None:
        """Have room for so many steps, whose tokens nobody has read."""
        while len(self._hosts) <= in_flight:
            self._hosts.append(self._gpu.allocate_host(self._offsets[-1]))
            self._hidden_hosts.append(GrowingBuffer(self._gpu))
            self._left_hosts.append(GrowingBuffer(self._gpu))
            self._events.append(self._gpu.create_event())

    def receive(self, plan: StepPlan, stream: Stream, told: Told = NOTHING) -> PendingResults:
        """Copy a step's tokens to the host, behind the step; with them what else is told of it."""
        index = self._next
        self._next = (index + 1) % len(self._hosts)
        host = self._hosts[index]
        count = len(plan.sampled)
        if count:
            length = self._offsets[-1] if plan.sampling_kind.logprobs else count * 4
            self._gpu.copy_to_host(host.address, self._device.address, length, stream)
        states = self._copy_rows(self._hidden_hosts[index], told.sampled, stream)
        left = self._copy_rows(self._left_hosts[index], told.left, stream)
        self._events[index].record(stream)
        return PendingResults(
            gpu=self._gpu,
            plan=plan,
            view=host.view,
            event=self._events[index],
            check=self._check,
            offsets=tuple(self._offsets),
            states=states,
            left=left,
            columns=next((rows.columns for rows in (told.sampled, told.left) if rows), 0),
        )

    def _copy_rows(
        self, buffer: GrowingBuffer, rows: DeviceRows | None, stream: Stream
    ) -> memoryview | None:
        if rows is None:
            return None
        host = buffer.of(rows.length_bytes)
        self._gpu.copy_to_host(host.address, rows.address, rows.length_bytes, stream)
        return host.view


@record
class PendingResults:
    """See ``zse.backends.operations.PendingStep``."""

    gpu: Gpu
    plan: StepPlan
    view: memoryview
    event: Event
    check: Callable[[], None]
    """Refuses what was computed without the other ranks."""
    offsets: tuple[int, ...]
    states: memoryview | None = None
    """bfloat16 rows, one for each sampled row."""
    left: memoryview | None = None
    """bfloat16 rows, one for each token."""
    columns: int = 0
    """Of these rows."""

    def sample(self) -> None:
        """The tokens were chosen where they were computed."""

    def wait(self) -> Answers:
        self.gpu.make_current()
        self.event.synchronize()
        self.check()
        plan, tokens = self.plan, self._numbers(0, "i")
        if self.left is not None:
            _hand_out(plan, self.left, self.columns)
        sampled = [
            SampledToken(tokens[row])
            if sampling.logprobs is None
            else self._with_logprobs(row, tokens[row], sampling.logprobs)
            for row, sampling in enumerate(plan.sampling)
        ]
        if self.states is not None:
            sampled = [
                token._replace(hidden=self._state(row)) if sampling.wants_hidden else token
                for row, (token, sampling) in enumerate(zip(sampled, plan.sampling, strict=True))
            ]
        if plan.kind == "decode":
            return [(token,) for token in sampled]
        answers: list[list[SampledToken]] = [[] for _ in plan.batch.chunks]
        for chunk, token in zip(plan.sampled, sampled, strict=True):
            answers[chunk].append(token)
        return list(map(accepted, plan.batch.chunks, answers))

    def _with_logprobs(self, row: int, token_id: int, count: int) -> SampledToken:
        first = row * MAX_ALTERNATIVES
        last = first + min(count, MAX_ALTERNATIVES)
        ids, values = self._numbers(2, "i")[first:last], self._numbers(3, "f")[first:last]
        return SampledToken(
            token_id=token_id,
            logprob=self._numbers(1, "f")[row],
            top=[(i, value) for i, value in zip(ids, values, strict=True) if i >= 0],
        )

    def _state(self, row: int) -> Sequence[float]:
        assert self.states is not None
        length = 2 * self.columns
        return floats_of_bfloat16(bytes(self.states[row * length : (row + 1) * length]))

    def _numbers(self, part: int, kind: Literal["i", "f"]) -> memoryview[Any]:
        view: memoryview[Any] = self.view[self.offsets[part] : self.offsets[part + 1]]
        return view.cast(kind)


def _hand_out(plan: StepPlan, found: memoryview, columns: int) -> None:
    """Copy bfloat16 rows of a step to the chunks that want them, as float32."""
    end = 0
    for chunk in plan.chunks_in_order():
        first, end = end, end + 2 * columns * len(chunk.token_ids)
        if chunk.states_to is not None:
            chunk.states_to[:] = floats_of_bfloat16(bytes(found[first:end])).cast("B")


def floats_of_bfloat16(data: bytes) -> memoryview[float]:
    """Return numbers of 16 bits as float32: the same bits, and sixteen more that are 0."""
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return memoryview(wide).cast("f")


def _rounded(length_bytes: int) -> int:
    """Return a size that leaves room to grow, so that buffers are not made anew all the time."""
    return 1 << max(length_bytes - 1, 1 << 16).bit_length()
