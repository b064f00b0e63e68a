"""The numbers of ``zse.h``: what has room, and what stands for what. The header says more."""

from __future__ import annotations

from enum import IntEnum

ACTIVATION_GROUP = 128
"""Columns that one scale covers where a matrix has no groups of its own."""
ATTENTION_PARTS = 32
"""Parts into which the keys of one row are split at most."""
MAX_HEAD_DIM = 576
"""Columns of a head that attention has room for."""
MAX_HEADS_A_GROUP = 128
"""Heads sharing one of keys and values that attention has room for."""
MAX_TAPS = 8
"""Tokens that the convolution before linear attention has room for."""
MAX_VOCABULARY = 1 << 20
"""Tokens that sampling has room for."""


BELL_BYTES = 64
"""Of a number that is waited for, in memory that processes share."""


class Scheme(IntEnum):
    """What the numbers of a matrix are."""

    FP32 = 0
    FP16 = 1
    BF16 = 2
    INT8 = 3
    INT4 = 4
    NF4 = 5
    MXFP4 = 6
    NL4 = 7
    NL4_PAIRS = 8
    """Groups of 16: two scales for 32 columns."""
    INT3 = 9
    INT2 = 10


class CacheDtype(IntEnum):
    """What keys and values are kept as."""

    FP32 = 0
    FP16 = 1
    BF16 = 2
    INT8 = 3
    INT4 = 4


class Activation(IntEnum):
    """What stands between the matrices of an MLP."""

    SILU = 0
    GELU = 1
    GELU_TANH = 2
    RELU2 = 3
    SWIGLU_OAI = 4
    TANH = 5


class Pooling(IntEnum):
    """Which rows of a whole text make its vector."""

    MEAN = 0
    FIRST = 1
    LAST = 2


class Scoring(IntEnum):
    """How a router's logits become scores."""

    SOFTMAX = 0
    SOFTMAX_CHOSEN = 1
    SIGMOID = 2


class RowSet(IntEnum):
    """The rows that an operation works on."""

    STEP = 0
    WANTED = 1
    CHOSEN = 2


class Register(IntEnum):
    """Rows of float32 that operations read and write."""

    RESIDUAL = 0
    QKV = 1
    MIXED = 2
    JOINED = 3
    HIDDEN = 4
    ADDED = 5
    NORMED = 6
    LOGITS = 7
    ROTARY = 8
    ROTARY_OTHER = 9
    PARTIAL = 10
    ARRIVED = 11
    SHARED = 12
    SHARED_GATE = 13
    MIXTURE = 14
    ROUTER = 15
    CHOICES = 16
    RUNS = 17
    CHOSEN = 18
    CHOSEN_JOINED = 19
    CHOSEN_HIDDEN = 20
    DELTA_GATES = 21
    QUERY_LATENT = 22
    QUERIES = 23
    WIDE_QUERIES = 24
    WIDE_MIXED = 25
    TOLD = 26
    LOW_RANK = 27
    OWN_LOGITS = 28


class Kind(IntEnum):
    """What an operation does."""

    ROTARY = 0
    EMBED = 1
    NORM = 2
    QUANTIZE = 3
    MULTIPLY = 4
    MULTIPLY_ADD = 5
    ROPE_STORE = 6
    ATTEND = 7
    ACTIVATE = 8
    ADD = 9
    SAMPLE = 10
    ADD_GATED = 11
    SCALE = 12
    CAP = 13
    GATE = 14
    ROUTE = 15
    SORT = 16
    GATHER = 17
    EXPERTS = 18
    COMBINE = 19
    CONVOLVE = 20
    DELTA = 21
    PLACE = 22
    TYPE = 23
    POOL = 24
    LATENT_STORE = 25
    ABSORB = 26
    EXPAND = 27
    ADD_PARTS = 28
    TELL = 29
    ADAPT_DOWN = 30
    ADAPT_UP = 31
    OFFER = 32
    MEET = 33
    SUM_RANKS = 34
    COLLECT = 35
