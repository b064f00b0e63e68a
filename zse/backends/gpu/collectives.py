"""What the GPUs of one host do together: sums over ranks, and rows of which each has columns.

Each has an inbox that the others' kernels write to (``zse.kernels.exchange``). It is shared once,
when the model is opened; from then on no step asks the host for anything, so captured graphs hold
exchanges as they hold any kernel.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import struct
from typing import TYPE_CHECKING

from zse.errors import DeviceError
from zse.kernels.exchange.launch import (
    ALL_SENT_BELOW,
    MAX_PROGRAMS,
    MAX_RANKS,
    Exchange,
    inbox_bytes,
    part_groups,
    rank_gather,
    rank_norm,
    rank_sum,
    slot_words_for,
    state_bytes,
    sums_apart,
    takes_norm,
)
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.gpu.forward import Residual, Step
    from zse.backends.gpu.weights import BoundNorm
    from zse.backends.ranks import Gift, RankLink
    from zse.device.gpu import Block, Gpu, Stream
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, Partials
    from zse.models.spec import HeadRows

PATIENCE_SECONDS = 10.0
"""How long a kernel waits for another GPU; a group that has failed is noticed sooner."""
FEW_ROWS = 64
"""Rows up to which ranks' sums are sent as float32: they are a few microseconds then."""
_EMPTY_BYTE, _ALIGNMENT, _PAGE_BYTES, _NEVER_BROKEN_OFFSET = 0xFF, 256, 4096, 64
_LOG = logging.getLogger("zse.backends.gpu")


class Collectives:
    """The exchange of one rank with the others; ``close`` gives the others' memory back.

    Args:
        link: Of the ranks, all of which make this at the same time.
        hidden: Columns of the residual stream.
        is_exact: Whether bits may not depend on how many rows there are: nothing is rounded then.

    Raises:
        DeviceError: The GPUs do not see each other, another rank has failed, or the ranks are not
            of one model.
    """

    def __init__(
        self,
        gpu: Gpu,
        stream: Stream,
        link: RankLink,
        *,
        hidden: int,
        is_exact: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        share = link.share
        if share.ranks > MAX_RANKS:
            raise DeviceError(
                f"{share.ranks} GPUs were asked for one model; its sums are made over {MAX_RANKS}",
                hint=f"Ask for --tensor-parallel {MAX_RANKS} or less.",
            )
        self._gpu, self._link, self._is_exact = gpu, link, is_exact
        slot_words = slot_words_for(hidden)
        (programs,) = link.least([min(MAX_PROGRAMS, gpu.info.multiprocessors)])
        with contextlib.ExitStack() as undone:
            self._failed = gpu.allocate_host(_PAGE_BYTES)
            undone.callback(self._failed.free)
            self._failed.view[:] = bytes(_PAGE_BYTES)
            self._inbox = gpu.allocate_shared(inbox_bytes(share.ranks, programs, slot_words))
            undone.callback(self._inbox.free)
            broken = self._map_broken()
            undone.callback(self._free_broken)
            offsets_bytes = align_up(share.ranks * 8, _ALIGNMENT)
            self._own = gpu.allocate(offsets_bytes + state_bytes(programs))
            undone.callback(self._own.free)
            self._others: list[Block] = []
            undone.callback(self._free_others)
            gpu.fill(self._inbox.address, _EMPTY_BYTE, self._inbox.length_bytes, stream)
            gpu.fill(self._own.address, 0, self._own.length_bytes, stream)
            self._send_offsets(self._map_others(stream, slot_words), stream)
            undone.pop_all()
        self.exchange = Exchange(
            rank=share.rank,
            ranks=share.ranks,
            words=self._inbox.address,
            offsets=self._own.address,
            state=self._own.address + offsets_bytes,
            failed=self._failed.address,
            broken=broken,
            slot_words=slot_words,
            programs=programs,
            patience_nanoseconds=int(patience_seconds * 1e9),
        )

    @property
    def length_bytes(self) -> int:
        return self._inbox.length_bytes + self._own.length_bytes

    def sum(self, launcher: Launcher, added: Partials, bias_address: int = 0) -> Partials:
        """Return where the sum over all ranks of some summands is: in place of the first one."""
        narrow = self._is_narrow(added.rows)
        return rank_sum(launcher, self.exchange, added, bias_address=bias_address, narrow=narrow)

    def settle(self, step: Step, residual: Residual) -> None:
        """Make what is pending for the stream the sum of what all ranks have pending."""
        if residual.pending is not None and residual.is_share:
            residual.pending = self.sum(step.launcher, residual.pending, residual.bias)
            residual.bias, residual.is_share = 0, False

    def takes_norm(
        self, step: Step, residual: Residual, norm: BoundNorm | None, hidden: int
    ) -> bool:
        """Whether the sum over ranks and a norm of the stream are one kernel.

        Many rows of many ranks are not: each rank adds up some of them. Nor are a few wide ones,
        where one program would make each of them.
        """
        rows = step.shape.rows
        in_two = self._is_narrow(rows) and self.exchange.ranks >= ALL_SENT_BELOW
        is_apart = sums_apart(1 if self._is_exact else rows, hidden)
        if is_apart and not self._part_groups(rows, hidden):
            return False
        return (
            residual.pending is not None
            and residual.is_share
            and residual.norm is None
            and not in_two
            and residual.scale == 1.0
            and residual.post is None
            and norm is not None
            and not (norm.is_layer_norm or norm.bias)
            and takes_norm(hidden)
        )

    def norm(
        self,
        step: Step,
        residual: Residual,
        norm: BoundNorm,
        output: Activation,
        hidden: int,
        row_index: int = 0,
    ) -> None:
        """Add what all ranks have pending to the stream and write its norm.

        ``takes_norm`` allows it.
        """
        added, bias, _, _ = residual.take_pending()
        assert added is not None
        rank_norm(
            step.launcher,
            self.exchange,
            residual.address,
            output.rows,
            hidden,
            norm.weight,
            norm.epsilon,
            output,
            added,
            added_bias_address=bias,
            row_index_address=row_index,
            narrow=self._is_narrow(step.shape.rows),
            groups_of_part=self._part_groups(step.shape.rows, hidden),
        )

    def join_columns(
        self, launcher: Launcher, part: int, output: int, *, rows: int, columns: int, own: HeadRows
    ) -> None:
        """Put float32 rows together, of which this rank has the columns of ``own``."""
        rank_gather(
            launcher,
            self.exchange,
            part,
            output,
            rows=rows,
            part_columns=own.each,
            own_columns=own.count,
            columns=columns,
        )

    def check(self) -> None:
        """Refuse what was computed after this GPU gave up waiting for another one.

        Raises:
            DeviceError: It did; the message names the rank that failed, if one has.
        """
        if not any(self._failed.view[:4]):
            return
        self._link.check()
        patience = self.exchange.patience_nanoseconds / 1e9
        raise DeviceError(
            f"rank {self.exchange.rank} waited {patience:g} s for its part of a sum from another "
            "GPU, whose process is still there",
            hint="Look at the other ranks' logs, and at dmesg for an Xid line of NVLink or PCIe.",
        )

    def close(self) -> None:
        """Give everything back; no rank may be computing any more."""
        self._gpu.make_current()
        with contextlib.ExitStack() as rest:
            for block in (self._failed, self._inbox, self._own):
                rest.callback(block.free)
            rest.callback(self._free_broken)
            self._free_others()

    def _map_broken(self) -> int:
        """Return where kernels see that the group has failed: nowhere, if it cannot be mapped."""
        self._broken: Block | None = None
        try:
            self._broken = self._gpu.map_host(self._link.broken_address, _PAGE_BYTES)
        except DeviceError as error:
            _LOG.warning("kernels wait by the clock alone for other GPUs: %s", error)
            return self._failed.address + _NEVER_BROKEN_OFFSET
        return self._broken.address

    def _free_broken(self) -> None:
        if self._broken is not None:
            self._broken.free()

    def _free_others(self) -> None:
        while self._others:
            self._others.pop().free()

    def _is_narrow(self, rows: int) -> bool:
        return rows > FEW_ROWS and not self._is_exact

    def _part_groups(self, rows: int, hidden: int) -> int:
        """Return the groups of a row that a program norms; 0 where it norms whole rows."""
        return 0 if self._is_exact else part_groups(rows, hidden, self.exchange.programs)

    def _map_others(self, stream: Stream, slot_words: int) -> list[int]:
        """Return the addresses of all inboxes; each is empty when its descriptor arrives."""
        stream.synchronize()
        share, length = self._link.share, self._inbox.length_bytes
        told = {"length_bytes": length, "slot_words": slot_words}
        descriptor = self._inbox.export()
        received: list[int] = []
        try:
            gifts = self._link.exchange(json.dumps(told).encode(), [descriptor])
            received = [d for gift in gifts for d in gift.descriptors if d != descriptor]
            addresses = []
            for rank, gift in enumerate(gifts):
                if rank == share.rank:
                    addresses.append(self._inbox.address)
                    continue
                self._others.append(self._gpu.open_shared(_descriptor_of(rank, gift, told), length))
                addresses.append(self._others[-1].address)
        finally:
            for each in (descriptor, *received):
                os.close(each)
        return addresses

    def _send_offsets(self, addresses: Sequence[int], stream: Stream) -> None:
        words = [(address - self._inbox.address) // 4 for address in addresses]
        raw = struct.pack(f"<{len(words)}q", *words)
        host = self._gpu.allocate_host(len(raw))
        try:
            host.view[: len(raw)] = raw
            self._gpu.copy_to_device(self._own.address, host.address, len(raw), stream)
            stream.synchronize()
        finally:
            host.free()


def _descriptor_of(rank: int, gift: Gift, told: dict[str, int]) -> int:
    """Return the descriptor of another rank's inbox, which is as large as one's own."""
    try:
        theirs = json.loads(gift.payload)
    except ValueError:
        theirs = None
    if theirs != told or len(gift.descriptors) != 1:
        raise DeviceError(
            f"rank {rank} has another inbox than this one: {theirs}; expected {told}",
            hint="All ranks must be of one version of zse, and open the same model.",
        )
    return gift.descriptors[0]
