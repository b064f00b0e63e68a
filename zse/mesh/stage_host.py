"""One stage on a node: computes steps in order, remembers what it sent, and feeds its standby.

Steps have numbers, and a stage computes each once, the next one after the last: what comes again
is passed over. What it sent stays in its log until the step is answered and the next stage's
standby has what it needs, so that a successor who takes over can be sent all of it again, in the
bytes that the first one saw. Nothing else is needed for the same tokens:

    what a standby has of keys and values is of step s; steps above s come again from the log.
    A step above the answered ones can be computed again in place: no block of it has been given
    to another sequence, since blocks are given back with answers.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

from zse.engine.wire_rows import numbers
from zse.errors import MeshError
from zse.mesh.batches import num_rows, read_batch, write_tokens, written_blocks
from zse.mesh.codecs import Codec
from zse.mesh.frames import Frame, Kind
from zse.mesh.messages import BlocksHead, StageState, encode
from zse.mesh.rows import read_rows, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.messages import StepHead
    from zse.mesh.opening import AnyStage

_STEPS_UNSETTLED = 8
"""Steps after which a standby is sent the blocks that they wrote; whole blocks, so not each."""
_MOST_IMAGE_BYTES = 8 << 20
_SMOOTHING = 0.2


class StageHost:
    """See above. All but ``state`` is for one thread.

    Args:
        part: The layers.
        clock: Seconds that only grow.
    """

    def __init__(self, part: AnyStage, clock: Callable[[], float] = time.perf_counter) -> None:
        self.part = part
        self._clock = clock
        self.layers = part.stage.first_layer, part.stage.end_layer
        self.is_primary = False
        self.done = 0
        self.seconds = 0.0
        """Of a step, lately."""
        self._log: OrderedDict[int, tuple[bytes | memoryview, bytes | bytearray]] = OrderedDict()
        self._base = self._missing = 0
        self._incoming = bytearray()
        self._dirty: set[int] = set()
        self._touched: set[int] = set()
        self._num_unsettled = 0
        self._feeds = ""
        """The node of the standby that is fed; empty: nobody."""
        self._is_whole = False
        """Whether the standby is being sent all that was there before it."""
        self._unsent: list[int] = []
        self._sent: list[tuple[int, list[int]]] = []
        """Steps and blocks of what was sent since the last order, but for what is long settled."""
        self._number = 0
        """Of the next frame to the standby, or from the one that computes."""

    @property
    def state(self) -> StageState:
        micros = int(self.seconds * 1e6)
        if self.is_primary:
            return StageState(*self.layers, True, self.done, micros, self._base, self._missing)
        return StageState(*self.layers, False, self.done, micros, num_fed=self._number)

    # --- roles ---------------------------------------------------------------------------------

    def lead(self, answered: int) -> None:
        """Be the one that computes these layers; steps that were not answered come again."""
        self._missing = 0
        if not self.is_primary:
            self.done = self._base = min(self.done, answered)
            self._log.clear()
            self._dirty.clear()
            self._is_whole = False
            self.is_primary = True  # last: ``state`` is for any thread

    def follow(self, settled: int = 0) -> None:
        """Be a standby: take what is sent, to begin with where nothing of it is settled yet."""
        if not settled:
            self.done = 0  # said from now on, though what is fed anew has not begun to come
        if self.is_primary:
            self.is_primary = False
            self.done = 0
            self._log.clear()
            self._dirty.clear()
            self.feed("")
            self._is_whole = False

    def feed(self, standby: str, settled: int = 0) -> None:
        """Send what changes to a standby; called with each order, since frames were lost with it.

        One that has settled nothing gets all that is there, another what it had not settled yet.
        """
        self._number = 0
        if standby != self._feeds or not settled:
            self._feeds = standby
            self._is_whole = False
            self._unsent, self._sent = [], []
        for step, blocks in self._sent:
            if step > settled:
                self._dirty.update(blocks)
        self._dirty.update(self._unsent)
        self._unsent, self._sent = [], []

    # --- steps ---------------------------------------------------------------------------------

    def compute(self, step: int, head: StepHead, rows: memoryview, codecs: list[int]) -> bool:
        """Compute a step and remember what goes on; False: it is not the next one.

        Raises:
            MeshError: The frame does not fit the stage.
            EngineError: The step contradicts itself.
        """
        if step != self.done + 1:
            self._missing = self.done + 1 if step > self.done else 0
            return False
        self._missing = 0
        begun = self._clock()
        part, stage = self.part, self.part.stage
        batch = read_batch(bytes(head.batch), part.stage.model.vocab_size)
        incoming: memoryview[float] | None = None
        if not stage.is_first:
            incoming = self._room_for(num_rows(batch))
            read_rows(part.library, Codec(codecs[head.stage]), rows, incoming, part.width)
        found = part.compute(batch, incoming)
        if stage.is_last:
            self._log[step] = write_tokens(found), b""  # type: ignore[arg-type]
        else:
            codec = Codec(codecs[head.stage + 1])
            assert isinstance(found, memoryview)
            body = write_rows(part.library, codec, found, part.width)
            self._log[step] = bytes(head.batch), body
        self.done = step
        written = written_blocks(batch, part.block_size)
        self._touched.update(written)
        self._dirty.update(written)
        self._num_unsettled += 1
        taken = self._clock() - begun
        self.seconds += (taken - self.seconds) * (_SMOOTHING if self.seconds else 1.0)
        return True

    def _room_for(self, count: int) -> memoryview[float]:
        """Return float32 [count, width], the same memory for each step."""
        num_bytes = 4 * count * self.part.width
        if len(self._incoming) < num_bytes:
            self._incoming = bytearray(num_bytes)
        return memoryview(self._incoming)[:num_bytes].cast("f")

    def trim(self, upto: int, settled: int) -> None:
        """Forget what nobody can ask for any more, and what the standby is known to have."""
        while self._sent and self._sent[0][0] <= settled:
            self._sent.pop(0)
        while self._log and next(iter(self._log)) <= upto:
            self._base = self._log.popitem(last=False)[0]

    def sent(self, step: int) -> tuple[bytes | memoryview, bytes | bytearray]:
        """Return what went on of a step: a batch or tokens, and rows."""
        return self._log[step]

    def remembers(self, step: int) -> bool:
        return step in self._log

    @property
    def steps_to_resend(self) -> list[int]:
        return list(self._log)

    # --- keys and values -----------------------------------------------------------------------

    def blocks_to_settle(self, epoch: int, *, is_idle: bool) -> Frame | None:
        """Return a frame for the standby where it is time for one: a bounded part of what it lacks.

        Steps go on between the parts; what they write comes behind, and only the last part, with
        which nothing is lacking, settles a step.
        """
        if not self._feeds:
            return None
        is_first = not self._is_whole
        if is_first:
            self._unsent, self._is_whole = sorted(self._touched), True
            self._dirty.clear()
        elif not self._unsent:
            is_due = self._num_unsettled >= _STEPS_UNSETTLED or is_idle
            if not self._dirty or not is_due:
                return None
        each = max(1, _MOST_IMAGE_BYTES // max(self.part.block_bytes, 1))
        blocks, self._unsent = self._unsent[:each], self._unsent[each:]
        if len(blocks) < each:
            fresh = sorted(self._dirty)[: each - len(blocks)]
            blocks = [*blocks, *fresh]
            self._dirty.difference_update(fresh)
        is_last = not self._unsent and not self._dirty
        if is_last:
            self._num_unsettled = 0
        self._sent.append((self.done, blocks))
        code = array("i", blocks).tobytes()
        head = BlocksHead(*self.layers, code, self._number, is_first, is_last)
        self._number += 1
        body = self.part.read_kv(blocks)
        return Frame(kind=Kind.BLOCKS, epoch=epoch, step=self.done, head=encode(head), body=body)

    def take_blocks(self, step: int, head: BlocksHead, image: memoryview) -> None:
        """As a standby, take what the one that computes has written.

        Raises:
            MeshError: It is of other layers, or this is no standby.
            EngineError: It does not fit the blocks.
        """
        if self.is_primary or (head.first_layer, head.end_layer) != self.layers:
            raise MeshError(f"layers {self.layers} were sent blocks that are not for them")
        blocks = numbers("i", head.blocks)
        if head.is_first:
            self.done = 0
            self._touched.clear()
            self._is_whole = True
        if head.number and head.number != self._number:
            self._is_whole, self.done = False, 0
        self._number = head.number + 1
        if not self._is_whole:
            return  # a part went astray: nothing of it counts until a standby is fed anew
        self.part.write_kv(blocks, image)
        self._touched.update(blocks)
        if head.is_last:
            self.done = step

    def close(self) -> None:
        self._log.clear()
        self.part.close()
