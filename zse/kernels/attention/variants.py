"""The compiled forms of ``attention_decode`` and ``attention_prefill``."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

from zse.kernels.attention.definitions import (
    CONTEXT_APART,
    CONTEXT_PREFILL,
    DECODE,
    FAMILY_DECODE,
    GATHER_CONTEXT,
    OUTPUT_GATE,
    PREFILL,
    SINK_PREFILL,
    TEXT_PREFILL,
    WIDE_DECODE,
)
from zse.kernels.layout import (
    CACHE_POINTERS,
    CACHES_OF_WIDTHS,
    FAMILY_HEAD_DIMS,
    HEAD_DIMS,
    INT8_HEAD_DIMS,
    TEXT_HEAD_DIMS,
    CacheDtype,
    padded,
)
from zse.kernels.variant import Kernel, Variant, variant
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_GROUP = 16
"""Query heads that may share a key-value head."""
INT8_OUTPUT_HEAD_DIMS = INT8_HEAD_DIMS
"""Head widths that make whole groups of 128 columns with a power of two of heads."""
SOFTCAP_HEAD_DIMS = (128, 256)
SINK_HEAD_DIMS = (64,)
PREFILL_HEAD_DIMS = tuple(sorted({*HEAD_DIMS, *FAMILY_HEAD_DIMS}))
CONTEXT_HEAD_DIMS = (64, 128, 256)
"""Head widths of attention over lines of a context."""
APART_HEAD_DIMS, APART_QUERIES, APART_TOKENS = (64, 128), 128, 128
"""What the form for Hopper takes: of 7B's heads 8,192 tokens in 0.74 ms on an H200, for 0.99."""
LINES_ALIGNMENT = 128
"""Lines of a sequence are a multiple of this: the most tokens that are taken at a time."""
WIDE_HEAD_DIM, WIDE_GROUP = 128, 8
"""Heads of the form for many rows over INT8 caches: their width, and most that share a key."""
WIDE_SPLITS = 2
"""Most programs along which ``decode_splits`` splits a sequence that this form reads with one."""
GATE_COLUMNS = 1024
"""Columns a program of ``output_gate``."""
PREFILL_QUERIES = 64
"""Tokens of a query tile: on an H200 a fifth faster than 128, as two programs share a processor."""

HOPPER = "sm_90"
NARROW_TARGETS = ("sm_80", "sm_86", "sm_87", "sm_89")
"""Architectures on which a prefill program of wide heads takes half as many tokens at a time."""


@record
class DecodeForm:
    """What one compiled form of the decode attention is made for."""

    head_dim: int
    heads: int = 8
    """Most query heads that share a key-value head: 8 or 16."""
    cache: CacheDtype = "bf16"
    quantized_output: bool = False
    head_norm: bool = False
    softcap: bool = False
    family: bool = False
    """Whether there may be sinks, and heads that are not as ``HeadInputs.is_usual`` says."""

    @property
    def is_usual(self) -> bool:
        """Whether it is one that most models ask for, which Hopper has forms of its own of."""
        rare = self.softcap or self.family or self.heads != 8
        return self.head_dim == 128 and self.cache == "bf16" and not rare


def decode_tile(head_dim: int) -> int:
    """Return how many tokens a program takes at a time."""
    return 64 if head_dim <= 128 else 32


@lru_cache(maxsize=256)  # every layer of a step asks
def decode_variants(form: DecodeForm) -> tuple[Variant, ...]:
    """Return all compiled forms: that of few rows, and Hopper's own for many where it has one."""
    few = decode_variant(form)
    if not form.is_usual:
        return (few,)
    return few, decode_variant(form, tile=32, num_stages=3, targets=(HOPPER,))


def decode_variant_for(form: DecodeForm, target: str, splits: int) -> Variant:
    """Return the compiled form for sequences that so many programs share.

    One program a sequence is where rows are many: the fewer registers, the more of them are there
    at once. Of 7B's heads on an H200, 128 rows of 576 tokens take 44 us for 50. For few rows tiles
    that come three ahead are faster alone (eight of 30,000 tokens 124 us for 156), and make a step
    slower (one row 1.70 ms for 1.49): what they keep of a multiprocessor's shared memory is what
    the kernels around them begin early in.
    """
    variants = decode_variants(form)
    return variants[-1] if target == HOPPER and splits == 1 else variants[0]


def decode_variant(
    form: DecodeForm,
    *,
    tile: int = 0,
    num_warps: int = 0,
    num_stages: int = 2,
    targets: tuple[str, ...] = (),
) -> Variant:
    """Return a compiled form; a ``tile`` of 0 tokens means ``decode_tile``.

    0 warps are as many as have registers for heads of this width.
    """
    types = dict(CACHE_POINTERS[form.cache])
    if form.quantized_output:
        types["outputs"] = "*i8"
    width = padded(form.head_dim)
    wide = form.head_dim > (128 if form.family else 256)  # gates take registers too
    return variant(
        FAMILY_DECODE if form.family else DECODE,
        num_warps=num_warps or (8 if wide else 4),
        num_stages=num_stages,
        types=types,
        targets=targets,
        HEAD_DIM=form.head_dim,
        HALF_PAD=width // 2,
        WIDTH=width,
        HEADS=16,  # the least that a product takes
        ROWS=form.heads,
        TILE=tile or decode_tile(form.head_dim),
        AT_ONCE=8 if form.head_dim <= 256 else 2,
        HEAD_NORM=form.head_norm,
        SOFTCAP=form.softcap,
    )


def wide_decode_variant(splits: int, *, quantized_output: bool) -> Variant:
    """Return the form over INT8 caches for many rows, by what ``decode_splits`` says of them.

    Of 7B's heads on an H200, 128 rows of 576 tokens take 25.6 us with two warps a program and 29.7
    with four, 256 rows of 1,500 tokens 109 and 117, 64 rows of 1,500 tokens 42.6 and 31.4.
    """
    types = {"outputs": "*i8"} if quantized_output else None
    return variant(WIDE_DECODE, num_warps=2 if splits == 1 else 4, types=types)


@record
class PrefillForm:
    """What one compiled form of the prefill attention is made for."""

    head_dim: int
    cache: CacheDtype = "bf16"
    window: bool = False
    softcap: bool = False
    sinks: bool = False
    whole: bool = False
    """Whether tokens see what follows them, too."""
    queries: int = PREFILL_QUERIES
    """Tokens that a program attends with."""
    tokens: int = 64
    """Cached tokens that it takes at a time."""


def prefill_form(
    head_dim: int,
    target: str,
    *,
    cache: CacheDtype,
    window: bool,
    softcap: bool,
    sinks: bool = False,
    whole: bool = False,
) -> PrefillForm:
    """Return the form for an architecture: what fits its registers and its shared memory."""
    narrow = target in NARROW_TARGETS
    tokens = 64 if head_dim <= (64 if narrow else 128) else 32
    return PrefillForm(
        head_dim=head_dim,
        cache=cache,
        window=window,
        softcap=softcap,
        sinks=sinks,
        whole=whole,
        tokens=16 if narrow and head_dim > 256 else tokens,
    )


def prefill_variant(form: PrefillForm, *, num_warps: int = 0, num_stages: int = 2) -> Variant:
    """Return the compiled form; 0 warps are as many as have registers for such heads."""
    kernel = TEXT_PREFILL if form.whole else SINK_PREFILL if form.sinks else PREFILL
    return variant(
        kernel,
        num_warps=num_warps or (8 if form.head_dim > 256 else 4),
        num_stages=num_stages,
        types=CACHE_POINTERS[form.cache],
        HEAD_DIM=form.head_dim,
        WIDTH=padded(form.head_dim),
        QUERIES=form.queries,
        TOKENS=form.tokens,
        WINDOW=form.window,
        SOFTCAP=form.softcap,
    )


def gather_context_variant(head_dim: int, cache: CacheDtype) -> Variant:
    """Return the form that copies a cache to lines."""
    return variant(GATHER_CONTEXT, types=CACHE_POINTERS[cache], HEAD_DIM=head_dim)


def context_tokens(head_dim: int, target: str) -> int:
    """Return the tokens that attention over lines takes at a time, what its memory holds; or 0."""
    if target in NARROW_TARGETS:
        return {64: 64, 128: 32}.get(head_dim, 0)
    return {64: 64, 128: 64, 256: 32}.get(head_dim, 0)


def context_variant(
    head_dim: int,
    tokens: int,
    *,
    queries: int = PREFILL_QUERIES,
    num_warps: int = 4,
    num_stages: int = 2,
    kernel: Kernel = CONTEXT_PREFILL,
) -> Variant:
    """Return a form that attends over lines of a context."""
    return variant(
        kernel,
        num_warps=num_warps,
        num_stages=num_stages,
        HEAD_DIM=head_dim,
        QUERIES=queries,
        TOKENS=tokens,
        STAGES=num_stages,
    )


def context_queries(head_dims: Iterable[int], target: str) -> int:
    """Return the queries of a tile over lines, the same for heads of all these widths."""
    wide = target in CONTEXT_APART.targets and set(head_dims) <= set(APART_HEAD_DIMS)
    return APART_QUERIES if wide else PREFILL_QUERIES


def context_form(head_dim: int, target: str, queries: int) -> Variant:
    """Return the form for tiles of ``context_queries``."""
    if queries == APART_QUERIES:
        return context_variant(head_dim, APART_TOKENS, queries=queries, kernel=CONTEXT_APART)
    return context_variant(head_dim, context_tokens(head_dim, target), queries=queries)


def output_gate_variant() -> Variant:
    return variant(OUTPUT_GATE, BLOCK=GATE_COLUMNS)


def _most_heads(head_dim: int, family: bool) -> tuple[int, ...]:
    """Return what ``DecodeForm.heads`` may be."""
    if head_dim != 128:
        return (8,)
    return (MAX_GROUP,) if family else (8, MAX_GROUP)


def heads_of_form(head_dim: int, group: int, *, family: bool) -> int:
    """Return ``DecodeForm.heads`` of a group of query heads; MAX_GROUP where none takes them."""
    return next((heads for heads in _most_heads(head_dim, family) if group <= heads), MAX_GROUP)


def _decode_forms() -> Iterator[DecodeForm]:
    kinds = [(dim, False) for dim in HEAD_DIMS] + [(dim, True) for dim in FAMILY_HEAD_DIMS]
    for (head_dim, family), cache, output, norm in product(kinds, _CACHES, _EITHER, _EITHER):
        if head_dim not in CACHES_OF_WIDTHS[cache] or (
            output and head_dim not in INT8_OUTPUT_HEAD_DIMS
        ):
            continue
        if head_dim > 256 and not norm:
            continue
        for heads in _most_heads(head_dim, family):
            yield DecodeForm(
                head_dim=head_dim,
                heads=heads,
                cache=cache,
                quantized_output=output,
                head_norm=norm,
                family=family,
            )
    for head_dim, cache, output in product(SOFTCAP_HEAD_DIMS, _WIDE_CACHES, _EITHER):
        yield DecodeForm(head_dim=head_dim, cache=cache, quantized_output=output, softcap=True)


def _prefill_forms() -> Iterator[PrefillForm]:
    kinds = [(dim, False, False) for dim in PREFILL_HEAD_DIMS]
    kinds += [(dim, True, False) for dim in SOFTCAP_HEAD_DIMS]
    kinds += [(dim, False, True) for dim in SINK_HEAD_DIMS]
    for (head_dim, softcap, sinks), cache, window in product(kinds, _CACHES, _EITHER):
        if head_dim not in CACHES_OF_WIDTHS[cache] or (window and head_dim > 256):
            continue
        if softcap and cache not in _WIDE_CACHES:
            continue
        for target in ("sm_80", "sm_90"):
            yield prefill_form(
                head_dim,
                target,
                cache=cache,
                window=window,
                softcap=softcap,
                sinks=sinks,
            )
    for head_dim, window in product(TEXT_HEAD_DIMS, _EITHER):
        if not window or head_dim == TEXT_HEAD_DIMS[-1]:
            yield PrefillForm(head_dim=head_dim, window=window, whole=True)


_EITHER = (False, True)
_CACHES: tuple[CacheDtype, ...] = ("bf16", "int8", "int4")
_WIDE_CACHES = _CACHES[:2]
"""Those that attention with a softcap takes."""
DECODE_FORMS = frozenset(_decode_forms())
PREFILL_FORMS = frozenset(_prefill_forms())
VARIANTS: tuple[Variant, ...] = (
    *(made for form in sorted(DECODE_FORMS, key=str) for made in decode_variants(form)),
    *(prefill_variant(form) for form in sorted(PREFILL_FORMS, key=str)),
    *(
        gather_context_variant(head_dim, cache)
        for head_dim in CONTEXT_HEAD_DIMS
        for cache in _CACHES
        if head_dim in CACHES_OF_WIDTHS[cache]
    ),
    *dict.fromkeys(
        context_variant(head_dim, tokens)
        for head_dim in CONTEXT_HEAD_DIMS
        for target in ("sm_80", "sm_90")
        if (tokens := context_tokens(head_dim, target))
    ),
    *(context_form(head_dim, "sm_90", APART_QUERIES) for head_dim in APART_HEAD_DIMS),
    output_gate_variant(),
    *(
        wide_decode_variant(splits, quantized_output=output)
        for splits in range(1, WIDE_SPLITS + 1)
        for output in _EITHER
    ),
)
