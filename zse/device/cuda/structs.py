"""The driver's structures, field by field as in cuda.h; a test compares them with the header."""

from __future__ import annotations

import ctypes
from typing import ClassVar

ATTRIBUTE_COOPERATIVE = 2
ATTRIBUTE_CLUSTER_DIMENSION = 4
ATTRIBUTE_CLUSTER_SCHEDULING = 5
ATTRIBUTE_PROGRAMMATIC_SERIALIZATION = 6
CLUSTER_SCHEDULING_SPREAD = 1

ALLOCATION_PINNED = 1
LOCATION_DEVICE = 1
ACCESS_READ_WRITE = 3
HANDLE_FILE_DESCRIPTOR = 1


class AttributeValue(ctypes.Union):
    """CUlaunchAttributeValue."""

    _fields_: ClassVar = [
        ("padding", ctypes.c_char * 64),
        ("number", ctypes.c_int),
        ("dimension", ctypes.c_uint * 3),
    ]


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_: ClassVar = [
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", AttributeValue),
    ]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_: ClassVar = [
        ("grid_x", ctypes.c_uint),
        ("grid_y", ctypes.c_uint),
        ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint),
        ("block_y", ctypes.c_uint),
        ("block_z", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    ]


class MemoryLocation(ctypes.Structure):
    """CUmemLocation."""

    _fields_: ClassVar = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_: ClassVar = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", MemoryLocation),
        ("windows_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_: ClassVar = [("location", MemoryLocation), ("flags", ctypes.c_int)]
