from __future__ import annotations

from faulty_s3 import faulty_s3

__all__ = ["faulty_s3"]
