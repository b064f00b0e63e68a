"""How programs of several GPUs hand words to each other.

Each GPU has an inbox, int32 [programs, 2, ranks, slot_words], that the others write to. A word that
nobody has sent is EMPTY, so data are their own flags: no fence and no second message stand between
sending and receiving, which is one flight over the link. Whoever has received words makes them
EMPTY again.

The same program of every GPU goes through the same exchanges, numbered by a counter of its own
that stays on the device; an exchange uses the half of its slots that its number's parity says. Two
halves are enough. In exchange k a program sends to all, receives from all, clears what it received,
and only then, in k + 1, sends again. So when words of k + 2 reach it, their sender has received its
own of k + 1, and the half has been cleared. Between two exchanges stands the end of a kernel or
``order_stores``.

A GPU that is gone sends nothing. Whoever waits gives up after ``patience``, or when the host says
that the group is broken; it says so to the host, and waits for nothing from then on.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from zse.kernels.layout import ACTIVATION_GROUP

GROUP = tl.constexpr(ACTIVATION_GROUP)
EMPTY = tl.constexpr(-1)
NOT_A_NUMBER = tl.constexpr(0x7FFFFFFF)
"""What is sent in place of EMPTY: one of the other NaNs, as one float32 or as two bfloat16."""
SPINS_BETWEEN_LOOKS = tl.constexpr(64)
"""Spins between two looks at the clock."""
NANOSECONDS_BETWEEN_LOOKS = tl.constexpr(10_000_000)
"""Between two looks at the host's memory. Thousands of warps wait at once: were they to look all
the time, their reads would fill the bus by which kernels are launched, and so each wait would make
the other ranks wait as long."""


class Inbox(NamedTuple):
    """What a program knows of the exchange; see ``zse.kernels.exchange.launch.Exchange``."""

    words: tl.tensor
    """Address of this GPU's inbox."""
    offsets: tl.tensor
    """Address of int64 [ranks]: words from here to each GPU's inbox."""
    state: tl.tensor
    """Address of int32: whether it has given up, then the counters of programs."""
    failed: tl.tensor
    """Address of an int32 that the host reads."""
    broken: tl.tensor
    """Address of an int32 that the host writes."""
    rank: tl.tensor
    ranks: tl.tensor
    slot_words: tl.tensor
    patience: tl.tensor
    """Nanoseconds."""


@triton.jit
def clock(spins, PLAIN: tl.constexpr):
    """Return nanoseconds; in the interpreter a spin counts as a millisecond."""
    if PLAIN:
        return spins.to(tl.int64) * 1000000
    return tl.extra.cuda.globaltimer()


@triton.jit
def order_stores(PLAIN: tl.constexpr):
    """Let what this program has stored be seen, by all GPUs, before what it stores next."""
    if not PLAIN:
        tl.inline_asm_elementwise(
            "fence.acq_rel.sys; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
        tl.debug_barrier()


@triton.jit
def half_of(inbox, number):
    """Return the first word of the half of the slots that an exchange of this program uses."""
    slot = tl.program_id(0).to(tl.int64) * 2 + (number & 1)
    return slot * inbox.ranks * inbox.slot_words


@triton.jit
def words_of(values, NARROW: tl.constexpr, PLAIN: tl.constexpr):
    """Return int32 [G, 128] of float32 [G, 128], or [G, 64] of them as pairs of bfloat16."""
    if NARROW:
        pairs = tl.reshape(values, (values.shape[0], values.shape[1] // 2, 2))
        first, second = tl.split(pairs)
        words = (bits_of_bf16(second, PLAIN) << 16) | bits_of_bf16(first, PLAIN)
    else:
        words = values.to(tl.int32, bitcast=True)
    return tl.where(words == EMPTY, NOT_A_NUMBER, words)


@triton.jit
def bits_of_bf16(values, PLAIN: tl.constexpr):
    """Return the bits of bfloat16 in the low half of int32; halves are rounded to even."""
    if PLAIN:
        bits = values.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        bits = bits >> 16
    else:
        bits = values.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
    return bits & 0xFFFF


@triton.jit
def values_of(words, NARROW: tl.constexpr):
    """Return float32 [G, 128] of words; the inverse of ``words_of``."""
    if NARROW:
        first = (words << 16).to(tl.float32, bitcast=True)
        second = (words & -65536).to(tl.float32, bitcast=True)
        values = tl.reshape(tl.join(first, second), (words.shape[0], 2 * words.shape[1]))
    else:
        values = words.to(tl.float32, bitcast=True)
    return values


@triton.jit
def places_of(GROUPS: tl.constexpr, NARROW: tl.constexpr):
    """Return [G, 128] the places of words in a slot, or [G, 64] of pairs."""
    width: tl.constexpr = GROUP // 2 if NARROW else GROUP
    return tl.arange(0, GROUPS)[:, None] * width + tl.arange(0, width)[None, :]


@triton.jit
def send(inbox, half, peer, words, places, mask):
    """Write words into this GPU's slot of another one's inbox."""
    offset = tl.multiple_of(tl.load(inbox.offsets + peer), 16)
    start = tl.multiple_of(half + inbox.rank * inbox.slot_words, 16)
    tl.store(inbox.words + offset + start + places, words, mask=mask)


@triton.jit
def send_to_all(inbox, half, words, places, mask):
    """Write the same words into this GPU's slots of all others."""
    for peer in range(inbox.ranks):
        if peer != inbox.rank:
            send(inbox, half, peer, words, places, mask)


@triton.jit
def still_empty(words):
    return tl.max(tl.max((words == EMPTY).to(tl.int32), axis=1), axis=0)


@triton.jit
def receive_two(inbox, half, first, patient, places, mask, PLAIN: tl.constexpr):
    """Wait for the words of ranks ``first`` and ``first + 1``, as far as they are others; clear.

    Returns:
        Words of both, zeros for a rank that is this one or is not, and whether to wait on.
    """
    slot = inbox.words + tl.multiple_of(half + first * inbox.slot_words, 16)
    next_slot = slot + tl.multiple_of(inbox.slot_words, 16)
    other = tl.zeros(places.shape, tl.int32) + first
    mask_0 = mask & (other != inbox.rank)
    mask_1 = mask & (other + 1 != inbox.rank) & (other + 1 < inbox.ranks)
    words_0 = tl.load(slot + places, mask=mask_0, other=0, volatile=True)
    words_1 = tl.load(next_slot + places, mask=mask_1, other=0, volatile=True)
    missing = still_empty(words_0) | still_empty(words_1)
    spins = missing * 0
    begin = clock(spins, PLAIN)
    looked = begin
    while (missing & patient) != 0:
        words_0 = tl.load(slot + places, mask=mask_0, other=0, volatile=True)
        words_1 = tl.load(next_slot + places, mask=mask_1, other=0, volatile=True)
        missing = still_empty(words_0) | still_empty(words_1)
        spins += 1
        if spins % SPINS_BETWEEN_LOOKS == 0:
            now = clock(spins, PLAIN)
            if now - looked > NANOSECONDS_BETWEEN_LOOKS:
                looked = now
                is_broken = tl.load(inbox.broken, volatile=True) != 0
                if (now - begin > inbox.patience) | is_broken:
                    patient = patient * 0
    if missing != 0:
        tl.store(inbox.state, 1)
        tl.store(inbox.failed, 1)
    tl.store(slot + places, EMPTY, mask=mask_0)
    tl.store(next_slot + places, EMPTY, mask=mask_1)
    return words_0, words_1, patient


@triton.jit
def sum_of_ranks(
    inbox, half, own, patient, places, mask, NARROW: tl.constexpr, PLAIN: tl.constexpr
):
    """Return the sum of all ranks' values, added in the order of ranks, and whether to wait on.

    Args:
        own: int32, the words that this GPU has sent; all GPUs add the same numbers.
    """
    total = values_of(tl.zeros(own.shape, tl.int32), NARROW)
    for first in range(0, inbox.ranks, 2):
        words_0, words_1, patient = receive_two(inbox, half, first, patient, places, mask, PLAIN)
        total += values_of(tl.where(inbox.rank == first, own, words_0), NARROW)
        total += values_of(tl.where(inbox.rank == first + 1, own, words_1), NARROW)
    return total, patient
