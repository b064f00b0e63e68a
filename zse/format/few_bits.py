"""INT3 and INT2: how whole numbers of fewer than four bits lie in a file (SPEC.md).

A piece of 32 columns is INT4's 16 bytes, four little-endian words, with the bits left out that a
smaller code does not have. So whoever multiplies INT4 multiplies these: it puts a piece's words
together and goes on as ever.
"""

from __future__ import annotations

BITS = {"int3": 3, "int2": 2}
"""Bits of a code, by scheme."""
FEW_BITS_GROUP_SIZES = (64, 32)
PIECE_WORDS = 4
"""Of 32 columns in INT4: a word has four columns of a group's first half in the low nibbles of its
bytes, and four of its second half in the high ones. In fewer bits there is a word for each bit."""
LOW_BITS = 0x33333333
"""Of a word of INT4: the two lower bits of each code."""
THIRD_BITS = 0x11111111
"""Of such a word, two bits lower: the third bit of each code."""
