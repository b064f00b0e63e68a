"""A load, planned and begun in one call."""

from __future__ import annotations

from typing import Any

from zse.stream.loader import begin_load, plan_load


def start_load(
    gpu: Any, source: Any, placement: Any, address: int, options: Any = None, *, groups: Any = None
) -> Any:
    plan = plan_load(source, placement, options, groups)
    return begin_load(gpu, source, plan, address, options)
