"""The structures of ``loader.h``, and what their numbers mean."""

from __future__ import annotations

import struct
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint64, c_void_p
from enum import IntEnum

DRIVER_FUNCTIONS = (
    "set_current",
    "create_stream",
    "destroy_stream",
    "synchronize",
    "copy",
    "pin",
    "unpin",
    "allocate",
    "free",
)
"""What of a driver a load calls, in the order in which a failure counts them."""


class Failure(IntEnum):
    """Why a load stopped: ``enum zse_failure``."""

    NONE = 0
    CANCELLED = 1
    DRIVER_FAILED = 2
    READ_FAILED = 3
    FILE_SHRANK = 4
    NO_MEMORY = 5


class AheadState(IntEnum):
    """Of a chunk that somebody else reads: ``enum zse_state``."""

    NOT_AHEAD = 0
    IS_COMING = 1
    IS_HERE = 2


class Driver(Structure):
    _fields_ = [*((name, c_void_p) for name in DRIVER_FUNCTIONS), ("context", c_void_p)]


class File(Structure):
    _fields_ = [
        ("fd", c_int32),
        ("direct_fd", c_int32),
        ("size", c_int64),
        ("mapping", c_void_p),
        ("asks_cache", c_int32),
        ("unused", c_int32),
    ]


class Ahead(Structure):
    _fields_ = [("memory", c_void_p), ("state", c_int32), ("unused", c_int32)]


class Counters(Structure):
    _fields_ = [
        ("landed_bytes", c_int64),
        ("direct_bytes", c_int64),
        ("buffered_bytes", c_int64),
        ("pin_nanoseconds", c_int64),
        ("read_nanoseconds", c_int64),
        ("copy_nanoseconds", c_int64),
        ("last_landed_nanoseconds", c_int64),
        ("num_complete", c_int64),
        ("num_running", c_int32),
        ("failure", c_int32),
        ("code", c_int32),
        ("unused", c_int32),
        ("detail", c_int64),
    ]


class Order(Structure):
    _fields_ = [
        ("driver", POINTER(Driver)),
        ("file", POINTER(File)),
        ("chunks", c_void_p),
        ("num_chunks", c_int64),
        ("num_groups", c_int64),
        ("block", c_uint64),
        ("buffer_bytes", c_int64),
        ("num_threads", c_int32),
        ("buffers_per_thread", c_int32),
        ("kept", c_void_p),
        ("areas", c_void_p),
    ]


CHUNK = struct.Struct("@qqqqiiP")
"""offset, length, destination, stride, num_pieces, group, address of an ``Ahead`` or 0.

Packed, for there are thousands: a ctypes structure of each would take milliseconds.
"""
