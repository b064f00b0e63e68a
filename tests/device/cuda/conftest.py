"""The stub driver's fixtures, for every test of this folder."""

from stub_libcuda import gpu, stub

__all__ = ["gpu", "stub"]
